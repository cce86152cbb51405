"""The words that names of operators, modules and ranges are made of: a value that is only these is looked for nowhere.

A variable of a secret's name may hold one (`CACHE_KEY=aten::mm`, `SORT_KEY=layer_norm`). Taken out of a trace, it would
take operators, steps and modules with it, and the figures would be others.
"""

from __future__ import annotations

import re
from typing import Final

from opanatomy.redaction.keys import words

_WORDS: Final = words(
    "aten prims torch nn functional autograd engine evaluate function profiler cpu cuda op module modules model"
    " models transformer transformers encoder decoder block blocks layer layers stage stages features base backbone"
    " head heads self cross multi attn attention mha sdpa mlp ffn feed forward backward fwd bwd recompute optimizer"
    " step train training eval inference loss proj projection qkv query up down gate dense fc lin linear in out"
    " input inputs output outputs intermediate hidden embed embeddings embedding wte wpe word position positional lm"
    " cls pooler classifier norm norms ln layernorm rms batch group instance native add addmm addmv addcmul addcdiv"
    " mm bmm baddbmm mv matmul einsum mul div sub neg sum mean var std max min amax argmax pow exp log sqrt rsqrt"
    " softmax logsoftmax nll entropy dropout gelu silu relu tanh sigmoid act activation activations conv convolution"
    " overrideable miopen cudnn mkldnn pool pooling pool2d avg adaptive copy cat stack split view reshape transpose"
    " permute expand squeeze unsqueeze slice select index gather scatter fill zero zeros ones empty clone contiguous"
    " detach where masked scaled dot product flash efficient fused foreach mem memory memcpy memset kernel kernels"
    " elementwise vectorized unrolled reduce all rotary sgd adam adamw accumulate grad gradient gradients clip"
    " unscale item local scalar record data loader dataloader next iter like as strided alias resize set unbind"
    " chunk narrow tril triu arange cumsum sort topk t to h c f a b d e g i j k l m n o p q r s u v w x y z"
)
_OPERATOR: Final = re.compile(
    r"(?:aten|prims?|c10d|_c10d_functional|torch|torchvision|inductor|quantized)::[A-Za-z]\w*$"
)
_NODE: Final = re.compile(r"[A-Z]\w*Backward\d$")
_NAME: Final = re.compile(r"[A-Za-z_]+(?:(?:\.|::|#)(?:[A-Za-z_]+|\d{1,4}))*$")
_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_vocabulary(value: str) -> bool:
    """Whether a text is an operator or the path of a module, by the words it is made of."""
    if _OPERATOR.match(value) or _NODE.match(value):
        return True
    return bool(_NAME.match(value)) and all(part.lower() in _WORDS for part in _PART.findall(value))
