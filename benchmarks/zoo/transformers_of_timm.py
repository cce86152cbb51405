"""Vision transformers, mixers and hybrids of timm, cut down by their own arguments."""

from __future__ import annotations

from functools import partial
from typing import Any

import timm

from benchmarks.zoo import Built, Models, image

_VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2}
#: Model -> its arguments; `size` is that of the input.
CHOSEN: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": _VIT,
    "deit_tiny_distilled_patch16_224": _VIT,
    "vit_relpos_small_patch16_224": _VIT,
    "beitv2_base_patch16_224": _VIT,
    "eva02_tiny_patch14_224": {**_VIT, "size": 32},
    "cait_xxs24_224": _VIT,
    "xcit_nano_12_p8_224": {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2},
    "mixer_s32_224": {"img_size": 64},
    "gmlp_ti16_224": {"img_size": 64},
    "poolformerv2_s12": {"size": 64},
    "pvt_v2_b0": {"size": 64},
    "twins_pcpvt_small": {"img_size": 64, "depths": (1, 1, 1, 1)},
    "levit_128s": {},
    "coatnet_nano_rw_224": {"img_size": 64},
    "maxvit_pico_rw_256": {"img_size": 64},
    "mobilevit_xxs": {"size": 64},
    "edgenext_xx_small": {"size": 64},
    "fastvit_t8": {"size": 64},
    "repvit_m0_9": {"size": 64},
    "ghostnet_050": {"size": 64},
    "dm_nfnet_f0": {"size": 64},
    "hrnet_w18_small": {"size": 64},
    "davit_tiny": {"size": 64, "depths": (1, 1, 1, 1)},
    "volo_d1_224": {"img_size": 64},
    "crossvit_tiny_240": {},
    "hiera_tiny_224": {"img_size": 64},
    "swinv2_cr_tiny_224": {"img_size": 64, "window_size": 2},
    "res2net50_14w_8s": {"size": 64},
    "lambda_resnet26t": {"size": 64},
    "halonet26t": {"size": 256},
    "convmixer_768_32": {"size": 32},
}


def made(name: str, arguments: dict[str, Any]) -> Built:
    """The model, and an image of its size."""
    options = dict(arguments)
    size = options.pop("size", None)
    model = timm.create_model(name, pretrained=False, num_classes=10, **options)
    if size is None:
        size = options.get("img_size") or model.default_cfg["input_size"][-1]
    return model, (image(size),)


MODELS: Models = {f"timm {name}": partial(made, name, arguments) for name, arguments in CHOSEN.items()}
