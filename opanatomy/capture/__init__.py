"""Run a model and a batch for one profiled step and write a trace file."""
