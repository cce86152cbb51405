"""What FSDP2 gathers together: the layers by the plan of the model, and modules that share a weight as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.parts import stacks_of

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


@contextmanager
def sharded_groups(module: torch.nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """Have `accelerator.prepare`, called while inside, shard `module` in the right groups.

    Weights that are shared must be of one group. Accelerate (1.15) sees to that for input and output embeddings and
    nothing else; BERT's head also shares its bias. Such modules are made a group here, which Accelerate then leaves.
    """
    from torch.distributed.fsdp import FSDPModule

    state, model = accelerator.state, _Model(module)
    state.fsdp_plugin.transformer_cls_names_to_wrap = sharded_classes(module)
    together = [group for group in tied_modules(module) if not {*map(id, group)} <= {*map(id, model.embeddings)}]
    for group in together:
        _shard(group, accelerator)
    head = model.output
    if not together or head is None or isinstance(head, FSDPModule):
        yield
        return
    # The head is inside of such a group and would be sharded a second time.
    hidden: Any = module
    hidden.get_output_embeddings = lambda: None
    try:
        yield
    finally:
        del hidden.get_output_embeddings


class _Model:
    """The embeddings of a model, where it says them."""

    def __init__(self, module: Any) -> None:
        self.input = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
        self.output = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None

    @property
    def embeddings(self) -> tuple[torch.nn.Module, ...]:
        return tuple(part for part in (self.input, self.output) if part is not None)


def _shard(group: Sequence[torch.nn.Module], accelerator: Accelerator) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    state: Any = accelerator.state
    mesh, config = state.device_mesh, state.parallelism_config
    fully_shard(
        list(group), mesh=None if mesh is None else mesh[tuple(config.fsdp_dim_names)], reshard_after_forward=False,
        mp_policy=state.fsdp_plugin.mixed_precision_policy or MixedPrecisionPolicy(),
    )  # fmt: skip


def sharded_classes(module: torch.nn.Module) -> list[str]:
    """The classes of which each instance is gathered by itself: what the model says is not to be split, without what
    holds the input embeddings, which Accelerate gathers by themselves; else those of its layers."""
    embeddings = _Model(module).input
    with_embeddings = {
        type(part).__name__ for part in module.modules() if any(inner is embeddings for inner in part.modules())
    }
    there = {type(part).__name__ for part in module.modules()} - with_embeddings
    whole = [name for name in getattr(module, "_no_split_modules", None) or () if name in there]
    return whole or sorted({stack.kind for stack in stacks_of(module)} & there)


def tied_modules(module: torch.nn.Module) -> list[list[torch.nn.Module]]:
    """The modules that have weights in common, in groups that have none; of modules inside of others these."""
    groups: list[tuple[set[int], list[torch.nn.Module]]] = []
    for part in module.modules():
        weights, members = {id(weight) for weight in part._parameters.values() if weight is not None}, [part]
        for group in [group for group in groups if group[0] & weights]:
            groups.remove(group)
            weights |= group[0]
            members = [*group[1], *members]
        if weights:
            groups.append((weights, members))
    return [_outermost(members) for _, members in groups if len(members) > 1]


def _outermost(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    inside = {id(inner) for part in modules for inner in part.modules() if inner is not part}
    return [part for part in modules if id(part) not in inside]
