"""Verification of a chain of draft tokens, from raw logits to emitted tokens."""
