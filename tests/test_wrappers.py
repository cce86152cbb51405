"""What wraps a model is not seen in its paths and classes; what shares weights is found."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from opanatomy.capture.distributed.training import sharded_classes, tied_modules
from opanatomy.capture.model.parts import class_name, own_modules, unwrapped
from tests.tiny import BERT, planned


class FSDPModule:
    """As torch's: the class that `fully_shard` adds to that of a module, in place."""


class ReplicateModule(FSDPModule):
    """As torch's own subclass of it."""


class Layer(nn.Linear):
    """A layer of the model's own."""


def test_classes_are_the_models_own() -> None:
    for added in (FSDPModule, ReplicateModule):
        layer = Layer(2, 2)
        layer.__class__ = type(f"{added.__name__}Layer", (added, Layer), {})
        assert class_name(layer) == "Layer"
    assert class_name(checkpoint_wrapper(Layer(2, 2))) == "Layer"
    assert class_name(nn.Linear(2, 2)) == "Linear"


def test_paths_are_those_before_it_was_wrapped() -> None:
    model = nn.Sequential(Layer(2, 2), nn.Sequential(Layer(2, 2), nn.ReLU()))
    before = [(path, id(part)) for path, part in model.named_modules()]
    inner = model[1]
    model[1] = checkpoint_wrapper(inner)
    assert [(path, id(part)) for path, part in own_modules(model)] == before
    assert unwrapped(model[1]) is inner


def test_a_module_that_is_called_like_a_wrapper_is_none() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Layer(2, 2)

    model = DistributedDataParallel()
    assert [path for path, _ in own_modules(model)] == ["", "module"]


def test_modules_with_a_weight_in_common_are_one_group() -> None:
    table, head, other = nn.Embedding(4, 2), nn.Linear(2, 4), nn.Linear(2, 4)
    head.weight = table.weight
    other.bias = head.bias
    model = nn.ModuleDict({"table": table, "apart": nn.Linear(2, 2), "head": head, "other": other})
    assert [{id(part) for part in group} for group in tied_modules(model)] == [{id(table), id(head), id(other)}]
    assert tied_modules(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_layers_are_gathered_one_by_one() -> None:
    from opanatomy.capture.model.building import build_on_meta

    plan = planned(model=BERT, settings=(("num_hidden_layers", "2"),))
    module = build_on_meta(plan.config, plan.auto_class, None, False)
    assert sharded_classes(module) == ["BertLayer"]
    assert sharded_classes(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
    assert all(isinstance(part, torch.nn.Module) for part in tied_modules(module)[0])
