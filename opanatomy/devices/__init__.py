"""Know what a device could do at most: measured, given by the user, or from its maker's data sheet."""
