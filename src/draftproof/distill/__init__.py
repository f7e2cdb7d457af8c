"""Train drafters for their acceptance rate, the overlap sum min(p, q): text, training, evaluation."""
