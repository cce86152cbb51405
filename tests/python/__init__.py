"""The Python surface: records, tables, the state a process is left in; the docs and the walks of the code."""
