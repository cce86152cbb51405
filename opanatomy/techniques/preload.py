"""What the server of fresh processes imports once: they begin with torch and transformers, and have run nothing."""

from __future__ import annotations

import gc

import torch
import torch._subclasses.fake_tensor
import torch.profiler
import transformers
import transformers.generation.utils
import transformers.masking_utils
import transformers.modeling_utils
import transformers.models.auto.modeling_auto

import opanatomy.capture.step.outcome
import opanatomy.capture.step.profile
import opanatomy.capture.step.timing
import opanatomy.estimate.simulate

__all__ = ["opanatomy", "torch", "transformers"]

# Each run collects garbage: the half million objects of these modules would be looked at, and their pages copied.
gc.freeze()
