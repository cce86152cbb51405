"""A step without running it: what it would call and allocate, seen on fake tensors, and how long that would take."""
