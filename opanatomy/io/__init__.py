"""Files, pipes and addresses: reading, atomic writing, and redaction."""
