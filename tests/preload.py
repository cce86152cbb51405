"""What the server of an experiment's processes imports in the tests: the models too that most of them build."""

from __future__ import annotations

import transformers.models.bert.modeling_bert
import transformers.models.gpt2.modeling_gpt2

import opanatomy.estimate.price
import opanatomy.pipeline
import opanatomy.techniques.figures
import opanatomy.techniques.preload

__all__ = ["opanatomy", "transformers"]
