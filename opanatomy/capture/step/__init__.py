"""Define one step: forward, backward and optimizer, or a generation, and their ranges in the trace."""
