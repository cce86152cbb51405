"""Two or more sides next to each other: `compare`, and runs in turns."""
