"""What `profile` runs: where models come from, their batches and texts, generation, training techniques."""
