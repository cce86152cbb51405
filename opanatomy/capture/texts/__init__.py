"""Real inputs: texts from a file or the embedded sample, their tokenizer, and the batches that they make."""
