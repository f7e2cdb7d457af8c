"""Verification of several candidates for one token."""
