"""Files of the user: names that are addresses, claims on what will be written, locks."""
