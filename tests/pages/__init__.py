"""What a report shows: the terminal, every format, the HTML page, terms, names from anywhere, what is left out."""
