"""Record a user's own training loop as it runs."""
