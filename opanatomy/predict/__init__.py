"""Predict and measure what techniques change of a step."""
