"""The step as a captured CUDA graph: the host replays it and reads tokens one step later."""

from draftproof.engine.graph.runner import GraphKind, GraphStepper, fits, reopen

__all__ = ["GraphKind", "GraphStepper", "fits", "reopen"]
