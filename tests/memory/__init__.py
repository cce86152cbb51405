"""Memory: snapshots, allocators, theory, a live step, a trace alone, and what happens when it runs out."""
