"""The speculative step, and the loops around it."""
