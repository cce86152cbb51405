"""Predictions: `estimate`, `--for`, `techniques`, suggestions, GPUs that are not here."""
