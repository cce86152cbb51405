"""Traces of any writer: read, kept, written; damaged ones, foreign ones, goldens, real ones (README.md says whose)."""
