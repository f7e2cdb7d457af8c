"""Errors that a user can act on: one line that names the offending value and the remedy."""


class DraftproofError(ValueError):
    """Something the caller can mend; the command line prints it as one line and exits with 2."""
