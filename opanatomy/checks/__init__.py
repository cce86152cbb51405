"""Second sources of the figures: counts of torch, the order of events, contractions and autograd counted again."""
