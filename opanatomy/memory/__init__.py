"""Turn observed or traced allocations into blocks, curve, peak and components, and compare them with theory."""
