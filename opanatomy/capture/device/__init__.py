"""Ask torch and the driver about the device of a capture."""
