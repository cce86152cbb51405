"""The process around a verb: its arguments, signals and exit code, stdout and stderr, and where a report goes."""
