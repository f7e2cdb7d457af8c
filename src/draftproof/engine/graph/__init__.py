"""The step as a captured CUDA graph: the host replays it and reads tokens one step later."""
