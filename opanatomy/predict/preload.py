"""Import torch and transformers once for all fresh processes, without running anything."""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

for name in (
    "torch",
    "torch._dynamo",
    "torch._subclasses.fake_tensor",
    "torch.profiler",
    "transformers.generation.utils",
    "transformers.masking_utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "opanatomy.capture.run.profile",
    "opanatomy.predict.fake",
):
    with suppress(Exception):  # the job fails in the same way, and says why
        import_module(name)

# Each run collects garbage: without this it would visit half a million objects of these modules and copy their pages.
gc.freeze()
