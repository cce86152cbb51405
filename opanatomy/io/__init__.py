"""Files, pipes and addresses: what is read, what is written whole or not at all, and what no text may show."""
