"""Stage 6: where attribution, classification and cost meet: tables of calls and kernels."""
