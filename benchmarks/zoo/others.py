"""Segmentation-models-pytorch, MONAI, vit-pytorch, OpenCLIP, sentence-transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.zoo import Built, Loss, Models, image, tokens


def smp(name: str, **options: Any) -> Built:
    import segmentation_models_pytorch

    model = getattr(segmentation_models_pytorch, name)("resnet18", encoder_weights=None, classes=3, **options)
    return model, (image(),)


def monai(name: str, *arguments: Any, shape: tuple[int, ...] = (16, 16, 16), **options: Any) -> Built:
    import monai.networks.nets

    model = getattr(monai.networks.nets, name)(*arguments, **options)
    return model, (torch.randn(1, 1, *shape),)


def vit_pytorch(module: str, name: str, size: int = 32, **options: Any) -> Built:
    import importlib

    made = getattr(importlib.import_module(f"vit_pytorch.{module}"), name)
    return made(num_classes=10, **options), (image(size),)


def open_clip(*, coca: bool = False) -> Built:
    from open_clip import CLIP, CLIPTextCfg, CLIPVisionCfg, CoCa

    seen = {"layers": 1, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 32}
    read = {"context_length": 16, "vocab_size": 96, "width": 32, "heads": 2, "layers": 1}
    if coca:
        options = {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
        above = {"context_length": 15, "vocab_size": 96, "width": 32, "heads": 2, "layers": 1}
        text = {**read, "context_length": 15, "embed_cls": True, "output_tokens": True}
        model: Any = CoCa(32, above, text, {**seen, **options})
        return model, (image(32), tokens(2, 15))
    return CLIP(32, CLIPVisionCfg(**seen), CLIPTextCfg(**read)), (image(32), tokens())


def sentence_transformer() -> Built:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling
    from transformers import BertConfig, BertModel

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(
                vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
            )
            self.model = BertModel(config)

        def forward(self, features: dict[str, torch.Tensor], **_: Any) -> dict[str, torch.Tensor]:
            output = self.model(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
            return {**features, "token_embeddings": output.last_hidden_state}

    model = SentenceTransformer(modules=[Words(), Pooling(32), Normalize()], device="cpu")
    ids = tokens()
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Loss(model, lambda output: output["sentence_embedding"].square().sum()), {"input": features}


_VIT = {"dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64, "image_size": 32, "patch_size": 8}

MODELS: Models = {
    "smp Unet": partial(smp, "Unet"),
    "smp Unet++": partial(smp, "UnetPlusPlus"),
    "smp FPN": partial(smp, "FPN"),
    "smp DeepLabV3+": partial(smp, "DeepLabV3Plus"),
    "smp MAnet": partial(smp, "MAnet"),
    "smp Linknet": partial(smp, "Linknet"),
    "monai UNet": partial(
        monai, "UNet", spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2)
    ),
    "monai DynUNet": partial(
        monai, "DynUNet", 3, 1, 2, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2],
        filters=[4, 8, 16], deep_supervision=False,
    ),
    "monai SegResNet": partial(monai, "SegResNet", init_filters=8, blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    "monai UNETR": partial(
        monai, "UNETR", 1, 2, (32, 32, 32), feature_size=4, hidden_size=24, mlp_dim=48, num_heads=2, shape=(32, 32, 32),
    ),
    "monai SwinUNETR": partial(
        monai, "SwinUNETR", in_channels=1, out_channels=2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2),
        spatial_dims=2, shape=(64, 64),
    ),
    "monai VNet": partial(monai, "VNet", shape=(32, 32, 32)),
    "vit-pytorch ViT": partial(vit_pytorch, "vit", "ViT", **_VIT),
    "vit-pytorch CaiT": partial(vit_pytorch, "cait", "CaiT", cls_depth=1, **_VIT),
    "vit-pytorch SimpleViT": partial(vit_pytorch, "simple_vit", "SimpleViT", **_VIT),
    "vit-pytorch CvT": partial(
        vit_pytorch, "cvt", "CvT", s1_emb_dim=8, s2_emb_dim=16, s2_heads=1, s3_emb_dim=32, s3_heads=2, s3_depth=1
    ),
    "open_clip CLIP": open_clip,
    "open_clip CoCa": partial(open_clip, coca=True),
    "sentence-transformers": sentence_transformer,
}  # fmt: skip
