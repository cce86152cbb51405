"""Run the command line: arguments, signals, exit codes, stdout and stderr, and the verbs."""
