"""Find what a device can do at most: measured, given by the user, or from its maker's data sheet."""
