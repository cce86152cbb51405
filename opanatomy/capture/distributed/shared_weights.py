"""The weights that ranks share: what DDP reduces, and what each group of FSDP2 gathers and scatters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.wrappers import unwrapped
from opanatomy.records.workload import SharedWeights

if TYPE_CHECKING:
    import torch


def shared_weights(modules: Iterable[torch.nn.Module], paths: Mapping[int, str]) -> tuple[SharedWeights, ...]:
    """The weights that ranks share; of `modules` the outer may be wrappers, `paths` has the path of each by its `id`.

    Call it after a step, in which FSDP decides what it gathers twice. What this torch does not expose is left out.
    """
    shared: list[SharedWeights] = []
    for module in modules:
        for part in module.modules():
            names = {kind.__name__ for kind in type(part).__mro__}
            if "DistributedDataParallel" in names and not getattr(part, "_comm_hooks", None):
                shared += _of_copies(part)
            elif "FSDPModule" in names:
                with suppress(AttributeError):
                    shared += _of_shards(part, paths)
    return tuple(dict.fromkeys(shared))


def _of_copies(module: Any) -> Iterator[SharedWeights]:
    ignored = set(getattr(module, "parameters_to_ignore", ()))
    trained = [
        parameter
        for name, parameter in module.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    size = _bytes(trained)
    yield SharedWeights(
        module="", ranks=module.process_group.size(), gathered_bytes=0, reduced_bytes=size, trained_bytes=size,
        weight_bytes=_bytes(module.parameters()),
    )  # fmt: skip


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def bucket_bytes(module: torch.nn.Module) -> int | None:
    """The buckets in which DDP reduces gradients, by its own account; 0 where gradients are views of them, `None`
    without DDP, and where it gives no account."""
    for part in module.modules():
        if any(kind.__name__ == "DistributedDataParallel" for kind in type(part).__mro__):
            wrapper: Any = part
            account = wrapper._get_ddp_logging_data()
            if account.get("gradient_as_bucket_view"):
                return 0
            sizes = account.get("rebuilt_bucket_sizes") or account.get("bucket_sizes")
            return sum(int(size) for size in sizes.split(",")) if sizes else None
    return None


def _of_shards(module: Any, paths: Mapping[int, str]) -> Iterator[SharedWeights]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    for group in filter(None, groups):
        mesh = group.mesh_info
        sizes = [_padded(parameter) * mesh.shard_mesh_size for parameter in group.fsdp_params]
        weights = [
            size * parameter.orig_dtype.itemsize for size, parameter in zip(sizes, group.fsdp_params, strict=True)
        ]
        gathered = sum(
            size * (parameter.param_dtype or parameter.orig_dtype).itemsize
            for size, parameter in zip(sizes, group.fsdp_params, strict=True)
        )
        reduced = sum(
            size * (parameter.reduce_dtype or parameter.param_dtype or parameter.orig_dtype).itemsize
            for size, parameter in zip(sizes, group.fsdp_params, strict=True)
            if parameter.sharded_param.requires_grad
        )
        yield SharedWeights(
            module=_path(group.modules, paths), ranks=mesh.shard_mesh_size, gathered_bytes=gathered,
            reduced_bytes=reduced, regathered=group._reshard_after_forward,
            replicas=getattr(mesh, "replicate_mesh_size", 1), weight_bytes=sum(weights),
            trained_bytes=sum(
                size
                for size, parameter in zip(weights, group.fsdp_params, strict=True)
                if parameter.sharded_param.requires_grad
            ),
        )  # fmt: skip


def _path(modules: Sequence[torch.nn.Module], paths: Mapping[int, str]) -> str:
    """What FSDP's own ranges call a group: the paths of its modules, in their order in the model."""
    group = {id(unwrapped(module)) for module in modules}
    return ", ".join(path for number, path in paths.items() if number in group)


def _padded(parameter: Any) -> int:
    """The elements of a parameter's part on each rank, which are as many on all."""
    return int(parameter.padded_sharded_param_size.numel())
