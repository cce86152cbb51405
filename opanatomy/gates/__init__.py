"""Gates: a figure of a report or of a comparison checked against a value; the exit code says the result."""
