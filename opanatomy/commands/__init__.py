"""One file a verb: arguments, call, nothing else."""
