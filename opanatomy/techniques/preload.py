"""What the server of fresh processes imports once: they begin with torch and transformers, and have run nothing."""

from __future__ import annotations

import torch
import torch._subclasses.fake_tensor
import torch.profiler
import transformers

__all__ = ["torch", "transformers"]
