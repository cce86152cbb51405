"""Detectors of torchvision with targets: their output is a dictionary of losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torchvision.models.detection as detection
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from benchmarks.zoo import Built, Models


def targets(size: int, *, masks: bool = False, keypoints: bool = False) -> list[dict[str, torch.Tensor]]:
    """Two boxes an image, with what else the detector asks for."""
    boxes = torch.tensor([[4.0, 4.0, 40.0, 40.0], [10.0, 8.0, 30.0, 50.0]])
    target: dict[str, torch.Tensor] = {"boxes": boxes, "labels": torch.tensor([1, 2])}
    if masks:
        target["masks"] = (torch.rand(2, size, size) > 0.5).to(torch.uint8)
    if keypoints:
        target["labels"] = torch.tensor([1, 1])
        target["keypoints"] = torch.rand(2, 3, 3) * 30 + 8
        target["keypoints"][:, :, 2] = 1
    return [dict(target), dict(target)]


def two_stage(kind: str, size: int = 64) -> Built:
    """R-CNNs on a ResNet-18 with a feature pyramid."""
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    options: dict[str, Any] = {"min_size": size, "max_size": size, "box_detections_per_img": 5}
    options |= {"rpn_pre_nms_top_n_train": 50, "rpn_post_nms_top_n_train": 20, "box_batch_size_per_image": 16}
    if kind == "faster_rcnn":
        model: torch.nn.Module = detection.FasterRCNN(backbone, 4, **options)
    elif kind == "mask_rcnn":
        model = detection.MaskRCNN(backbone, 4, **options)
    else:
        model = detection.KeypointRCNN(backbone, 2, num_keypoints=3, **options)
    images = [torch.rand(3, size, size), torch.rand(3, size, size)]
    return model, (images, targets(size, masks=kind == "mask_rcnn", keypoints=kind == "keypoint_rcnn"))


def one_stage(kind: str, size: int = 64) -> Built:
    """Detectors without proposals."""
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    anchors = AnchorGenerator(((8,), (16,), (32,), (64,), (128,)), ((1.0,),) * 5)
    made: Any = detection.FCOS if kind == "fcos" else detection.RetinaNet
    model: torch.nn.Module = made(backbone, 4, min_size=size, max_size=size, anchor_generator=anchors)
    return model, ([torch.rand(3, size, size), torch.rand(3, size, size)], targets(size))


def ssd(name: str) -> Built:
    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=4)
    return model, ([torch.rand(3, 96, 96), torch.rand(3, 96, 96)], targets(96))


MODELS: Models = {
    "torchvision faster_rcnn": partial(two_stage, "faster_rcnn"),
    "torchvision mask_rcnn": partial(two_stage, "mask_rcnn"),
    "torchvision keypoint_rcnn": partial(two_stage, "keypoint_rcnn"),
    "torchvision retinanet": partial(one_stage, "retinanet"),
    "torchvision fcos": partial(one_stage, "fcos"),
    "torchvision ssdlite320": partial(ssd, "ssdlite320_mobilenet_v3_large"),
}
