"""Faster text from a language model, from exactly the model's own distribution."""
