"""Predict and measure what techniques change in a step."""
