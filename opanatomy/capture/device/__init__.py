"""The device of a capture: what torch can do with it, its start, its driver, the machine around it."""
