"""Traces of any writer, read, kept and written: damaged ones, foreign ones, goldens, real ones; README.md says whose."""
