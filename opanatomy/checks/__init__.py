"""Check figures against second sources: torch's counts, event order, recounts of contractions and autograd."""
