"""Minimal reproductions of what the audits found: each runs in its engine's environment and needs nothing else."""
