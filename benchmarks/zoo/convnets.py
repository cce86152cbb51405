"""Networks of torchvision for images and video: grouped, depthwise, dilated, with auxiliary outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchvision.models as models

from benchmarks.zoo import Built, Models, image


def classifier(name: str, size: int = 64, **options: Any) -> Built:
    """One of torchvision's classifiers of ten classes, as published but for the input."""
    return models.get_model(name, weights=None, num_classes=10, **options), (image(size),)


def segmenter(name: str, **options: Any) -> Built:
    """One of torchvision's segmentation models, a backbone without weights."""
    return models.get_model(name, weights=None, weights_backbone=None, num_classes=5, **options), (image(),)


def video(name: str, frames: int = 4, size: int = 32, **options: Any) -> Built:
    """One of torchvision's video classifiers."""
    model = models.get_model(name, weights=None, num_classes=10, **options)
    return model, (torch.randn(1, 3, frames, size, size),)


def s3d() -> Built:
    """Its last pooling takes a small clip whole."""
    model, _ = video("s3d")
    model.avgpool = torch.nn.AdaptiveAvgPool3d(1)
    return model, (torch.randn(1, 3, 16, 64, 64),)


def tiny_vit() -> Built:
    model = models.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)
    return model, (image(32),)


def tiny_swin(version: str = "") -> Built:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    options: dict[str, Any] = {}
    if version:
        options = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    model = models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10, **options)
    return model, (image(32),)


def tiny_maxvit() -> Built:
    model = models.MaxVit((64, 64), 16, 4, [16, 32], [1, 1], 8, 0.1, num_classes=10)
    return model, (image(),)


def tiny_mvit() -> Built:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    def block(**options: Any) -> MSBlockConfig:
        chosen = {
            "num_heads": 1,
            "input_channels": 16,
            "output_channels": 16,
            "kernel_q": [3, 3, 3],
            "kernel_kv": [3, 3, 3],
            "stride_q": [1, 1, 1],
            "stride_kv": [1, 2, 2],
        }
        return MSBlockConfig(**{**chosen, **options})

    blocks = [block(), block(num_heads=2, output_channels=32, stride_q=[1, 2, 2])]
    model = MViT((32, 32), 4, blocks, True, True, True, True, num_classes=10, stochastic_depth_prob=0.1)
    return model, (torch.randn(1, 3, 4, 32, 32),)


def tiny_swin3d() -> Built:
    model = models.video.SwinTransformer3d([2, 4, 4], 16, [2, 2], [2, 4], [2, 4, 4], num_classes=10)
    return model, (torch.randn(1, 3, 4, 32, 32),)


def raft() -> Built:
    model = models.optical_flow.raft_small(weights=None)

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> list[torch.Tensor]:
            flows: list[torch.Tensor] = self.model(first, second, num_flow_updates=2)
            return flows

    return Flow(), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))


def _of(maker: Callable[..., Built], *names: str, **options: Any) -> Models:
    return {f"torchvision {name}": partial(maker, name, **options) for name in names}


MODELS: Models = {
    **_of(
        classifier, "resnet18", "resnext50_32x4d", "densenet121", "mobilenet_v2", "mobilenet_v3_small",
        "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf", "convnext_tiny", "shufflenet_v2_x0_5",
        "squeezenet1_1", "mnasnet0_5", "alexnet", "vgg11_bn",
    ),
    **_of(classifier, "googlenet", init_weights=False, aux_logits=True),
    **_of(classifier, "inception_v3", size=300, init_weights=False, aux_logits=True),
    **_of(segmenter, "fcn_resnet50", "deeplabv3_mobilenet_v3_large", aux_loss=True),
    **_of(segmenter, "lraspp_mobilenet_v3_large"),
    **_of(video, "r3d_18", "mc3_18", "r2plus1d_18"),
    "torchvision s3d": s3d,
    "torchvision vit": tiny_vit,
    "torchvision swin": tiny_swin,
    "torchvision swin_v2": partial(tiny_swin, "v2"),
    "torchvision maxvit": tiny_maxvit,
    "torchvision mvit": tiny_mvit,
    "torchvision swin3d": tiny_swin3d,
    "torchvision raft_small": raft,
}  # fmt: skip
