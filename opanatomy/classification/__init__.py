"""Classify operators and kernels by ordered rule tables; UNKNOWN is a valid answer."""
