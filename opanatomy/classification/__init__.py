"""Classify operators and kernels by ordered rule tables; UNKNOWN is an answer."""
