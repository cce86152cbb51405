"""Find a device's peak rates: measured, given by the user, or from the data sheet."""
