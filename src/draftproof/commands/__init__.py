"""A file for each command; what a command needs is imported when it is called, so that help comes at once."""
