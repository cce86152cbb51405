"""Hold the look and the script of the page, which `formats/html.py` writes into it."""
