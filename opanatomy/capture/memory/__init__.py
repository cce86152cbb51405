"""Observe the memory of a step."""
