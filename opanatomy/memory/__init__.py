"""Turn observed or traced allocations into blocks, curve, peak, components, and set theory beside them."""
