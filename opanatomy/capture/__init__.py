"""Stage 1: a model and a batch, one profiled step, one trace file."""
