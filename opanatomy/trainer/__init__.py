"""Some steps of a training by transformers' Trainer, recorded as they run."""
