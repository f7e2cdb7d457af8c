"""Engines that people run, audited: their environments, a toy model for all of them, collectors, and the rows."""
