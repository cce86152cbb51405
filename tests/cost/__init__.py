"""Costs: FLOPs and bytes by formula, next to torch's counter, observed tensors and figures by hand."""
