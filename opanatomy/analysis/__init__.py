"""Turn tables of calls and device work into the records of the report, and compare reports."""
