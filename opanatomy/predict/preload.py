"""Import torch and transformers once for all fresh processes, without running anything."""

from __future__ import annotations

import gc

import torch
import torch._dynamo
import torch._subclasses.fake_tensor
import torch.profiler
import transformers
import transformers.generation.utils
import transformers.masking_utils
import transformers.modeling_utils
import transformers.models.auto.modeling_auto

import opanatomy.capture.run.profile
import opanatomy.predict.fake

__all__ = ["opanatomy", "torch", "transformers"]

# Each run collects garbage: without this it would visit half a million objects of these modules and copy their pages.
gc.freeze()
