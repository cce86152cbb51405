"""A user's own loop or script: `record`, `run`, the Trainer's callback, the handler, long runs, lines of code."""
