"""Run a model and a batch for one profiled step and write one trace file; the only room that imports torch."""
