"""Recordings of torch's memory snapshots, and what renews and damages them."""
