"""Import torch and transformers once for all fresh processes, without running anything."""

from __future__ import annotations

import gc

# Each run collects garbage: without this it would visit half a million objects of these modules and copy their pages.
gc.freeze()
