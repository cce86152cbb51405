"""The weights that ranks share, as the prepared model has them: what they must exchange follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opanatomy.records.workload import SharedWeights

if TYPE_CHECKING:
    import torch


def shared_weights(module: torch.nn.Module) -> tuple[SharedWeights, ...]:
    """The weights of a module that DDP or FSDP2 shares; none where ranks share them in another way, or not.

    Sizes are those of the whole weights, by their shapes; nothing is asked of the buffers that exchange them.
    """
    for part in module.modules():
        if any(kind.__name__ == "DistributedDataParallel" for kind in type(part).__mro__):
            return (_reduced(part),)
        if _is_sharded(part):
            return tuple(_sharded(module))
    return ()


def _reduced(module: Any) -> SharedWeights:
    """The gradients that DDP reduces: those of all weights that are trained."""
    ignored = set(module.parameters_to_ignore)
    trained = [
        weight for name, weight in module.module.named_parameters() if weight.requires_grad and name not in ignored
    ]
    size = sum(weight.numel() * weight.element_size() for weight in trained)
    return SharedWeights(
        module="", ranks=module.process_group.size(), gathered_bytes=0, reduced_bytes=size, trained_bytes=size,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in module.parameters()),
    )  # fmt: skip


def bucket_bytes(module: torch.nn.Module) -> int | None:
    """The buckets in which DDP reduces gradients, by its own account; 0 where gradients are views of them, `None`
    without DDP."""
    for part in module.modules():
        if any(kind.__name__ == "DistributedDataParallel" for kind in type(part).__mro__):
            wrapper: Any = part
            account = wrapper._get_ddp_logging_data()
            sizes = account.get("rebuilt_bucket_sizes") or account.get("bucket_sizes") or ""
            held = sum(int(size) for size in sizes.split(",") if size.strip())
            return 0 if account.get("gradient_as_bucket_view") else held
    return None


def _sharded(module: torch.nn.Module) -> Iterator[SharedWeights]:
    """What FSDP2 gathers at once: the weights below each of its modules that are of no other one further down."""
    states: dict[int, list[Any]] = {}
    for part in module.modules():
        if _is_sharded(part):
            sharded: Any = part
            states.setdefault(id(sharded._get_fsdp_state()), []).append(sharded)
    for members in states.values():
        weights = list({id(weight): weight for member in members for weight in _own(member, members)}.values())
        if weights:
            yield _gathered(weights, members[0]._get_fsdp_state()._fsdp_param_group)


def _gathered(weights: Sequence[Any], group: Any) -> SharedWeights:
    mesh, policy = weights[0].device_mesh, group.mp_policy
    ranks = mesh.size(mesh.ndim - 1)
    gathered, reduced = policy.param_dtype, policy.reduce_dtype or policy.param_dtype
    trained = [weight for weight in weights if weight.requires_grad]
    return SharedWeights(
        module=group._module_fqn or "", ranks=ranks,
        gathered_bytes=sum(_padded(weight, ranks) * (gathered or weight.dtype).itemsize for weight in weights),
        reduced_bytes=sum(_padded(weight, ranks) * (reduced or weight.dtype).itemsize for weight in trained),
        weight_bytes=sum(_padded(weight, ranks) * weight.dtype.itemsize for weight in weights),
        trained_bytes=sum(_padded(weight, ranks) * weight.dtype.itemsize for weight in trained),
        regathered=group.post_forward_mesh_info is not None, replicas=mesh.size(0) if mesh.ndim > 1 else 1,
    )  # fmt: skip


def _is_sharded(part: torch.nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(part).__mro__)


def _own(member: torch.nn.Module, members: list[Any]) -> Iterator[Any]:
    """The weights below a module that FSDP2 shards, without those of such modules inside of it."""
    inside = {
        id(weight)
        for part in member.modules()
        if part is not member and part not in members and _is_sharded(part)
        for weight in part.parameters()
    }
    return (weight for weight in member.parameters() if id(weight) not in inside and hasattr(weight, "device_mesh"))


def _padded(weight: Any, ranks: int) -> int:
    """The elements of a weight with its first dimension filled up, so that it has equal parts."""
    rows = weight.shape[0] if weight.ndim else 1
    return -(-rows // ranks) * ranks * (weight.numel() // max(rows, 1))
