"""Run the profiled step: warm-up, timing, ranges, export, and what Kineto drops."""
