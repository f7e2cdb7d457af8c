"""The command line, one file per command; imports wait until a command runs, so that --help is fast."""
