"""An OpenAI-compatible server on AsyncEngine: endpoints, limits, and the life of the process."""
