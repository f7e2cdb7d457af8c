"""Verification of a tree of draft tokens."""
