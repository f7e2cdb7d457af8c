"""The command line, one file or folder per command; imports wait until a command runs, so that --help is fast."""
