"""Drafters trained for what sampling needs, the overlap sum min(p, q): text, training, evaluation."""
