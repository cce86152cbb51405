"""What several folders use: made traces and reports, runs of the command, observers, stand-ins; no tests."""
