"""A user's own training loop, recorded as it runs: its calls are marked, nothing of it is run by us."""
