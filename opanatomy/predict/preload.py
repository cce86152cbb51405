"""What the server of fresh processes imports once: they begin with torch and transformers, and have run nothing."""

from __future__ import annotations

import gc

# Each run collects garbage: the half million objects of these modules would be looked at, and their pages copied.
gc.freeze()
