"""Gates: a figure of a report or of a comparison held against a value, which the exit code tells."""
