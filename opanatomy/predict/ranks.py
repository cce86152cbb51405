"""Simulate one rank of a training on several GPUs that are not here: its collectives, and its part of the memory.

torch's process group for tests (`fake`) accepts every collective and does nothing. Weights and layers are sharded by
the code of a real run, so that a rank makes its calls; only DDP, which reads values in C++, is reimplemented.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from msgspec.structs import replace

from opanatomy.capture.distributed.ranks import BUCKET_MB, is_sharded, sharding_of
from opanatomy.capture.distributed.training import cut, sharded_groups
from opanatomy.capture.step.stepper import Training
from opanatomy.capture.subject import Subject
from opanatomy.errors import UsageError
from opanatomy.options import CHECKPOINTED, CHECKPOINTING, DDP, PARALLEL, TP, RunOptions, spelled

if TYPE_CHECKING:
    import torch


class _Nothing:
    """A stream or event of an absent GPU: the default stream's numbers, and methods that do nothing."""

    stream_id = device_index = device_type = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: _Nothing()


@contextmanager
def absent_ranks(ranks: int) -> Iterator[Any]:
    """Make this process the first of this many ranks, the others being absent; yield the mesh of all."""
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import _disable_current_modes

    propagator: Any = ShardingPropagator
    propagate = propagator._propagate_tensor_meta_non_cached

    def unseen(*args: object) -> Any:
        # It asks for the shape of a whole result, of which a rank makes a part: dispatch modes are kept out.
        with _disable_current_modes():
            return propagate(*args)

    answers: tuple[tuple[Any, str, Any], ...] = (
        (torch.cuda, "Stream", _Nothing),
        (torch.cuda, "Event", _Nothing),
        (torch, "Event", _Nothing),
        (torch.cuda, "current_stream", _Nothing),
        (torch.cuda, "stream", lambda _: nullcontext()),
        (torch.Tensor, "record_stream", lambda *_: None),
        (ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen),
    )
    with ExitStack() as stack:
        for owner, name, answer in answers:
            stack.enter_context(patch.object(owner, name, answer))

        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        stack.callback(distributed.destroy_process_group)
        yield init_device_mesh("cuda", (ranks,), mesh_dim_names=(TP,))


def on_a_rank(subject: Subject, options: RunOptions, mesh: Any) -> Subject:
    """Return the subject as the first rank of the mesh runs it, with a batch of its own unless its layers are cut.

    Raises `UsageError` for a model that cannot be cut.
    """
    parallel, ranks = options.parallel or DDP, mesh.size()
    state = SimpleNamespace(
        device_mesh=mesh,
        fsdp_plugin=sharding_of(options, parallel),
        parallelism_config=SimpleNamespace(fsdp_dim_names=mesh.mesh_dim_names),
    )
    accelerator: Any = SimpleNamespace(
        state=state,
        num_processes=ranks,
        mixed_precision="no",
        is_main_process=False,
        torch_device_mesh=mesh,
        parallelism_config=state.parallelism_config,
    )
    training = Training()
    if parallel == TP:
        config: Any = getattr(subject.module, "config", None)
        for name in ("num_attention_heads", "num_key_value_heads"):
            heads = getattr(config, name, None)
            if isinstance(heads, int) and heads % ranks:
                raise UsageError(
                    f"{spelled(PARALLEL, TP)}: {name} is {heads}, which is not a multiple of {ranks} - use a number of"
                    " ranks that divides it"
                )
        cut(subject.module, accelerator)
    elif is_sharded(parallel):
        from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model

        with sharded_groups(subject.module, accelerator):
            if parallel == CHECKPOINTED:
                fsdp2_apply_ac(accelerator, subject.module)
            fsdp2_prepare_model(accelerator, subject.module)
    elif not options.inference:
        training = _Copies(subject.module, options, ranks)
    batch = subject.workload.batch
    together = batch and batch * (1 if parallel == TP else ranks)
    workload = replace(
        subject.workload,
        parallel=parallel,
        world_size=ranks,
        samples_together=together,
        bucket_mb=options.bucket_mb if parallel == DDP else None,
        bucket_view=options.bucket_view if parallel == DDP else None,
        checkpointing=CHECKPOINTING.bare if parallel == CHECKPOINTED else subject.workload.checkpointing,
    )
    return replace(subject, training=training, workload=workload)


#: The bytes of DDP's first bucket, which is reduced while the others still fill.
_FIRST_BUCKET: Final = 1 << 20


class _Copies(Training):
    """One rank's training under DDP: gradients are copied into buckets, each reduced when full."""

    def __init__(self, module: torch.nn.Module, options: RunOptions, ranks: int) -> None:
        self._ranks, self._is_view, self._reduces = ranks, options.bucket_view, True
        most = int((options.bucket_mb or BUCKET_MB) * (1 << 20))
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        trained.reverse()
        alike = [
            [each for each in trained if each.dtype is dtype] for dtype in dict.fromkeys(each.dtype for each in trained)
        ]
        self._hooks = [hook for some in alike for bucket in _buckets(some, most) for hook in self._fill(bucket)]

    def _fill(self, parameters: list[torch.Tensor]) -> Iterator[Any]:
        """Reduce these parameters' gradients together when the last of them is made."""
        import torch

        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.empty(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        views = [part.view_as(parameter) for part, parameter in zip(flat.split(sizes), parameters, strict=True)]  # type: ignore[no-untyped-call]
        made: set[int] = set()

        def reduce(index: int) -> None:
            if not self._reduces:
                return
            gradient = parameters[index].grad
            if not (self._is_view and gradient is not None and gradient._base is flat):
                torch.mul(gradient, 1 / self._ranks, out=views[index])  # type: ignore[arg-type]
            made.add(index)
            if len(made) < len(parameters):
                return
            made.clear()
            torch.distributed.all_reduce(flat)
            for parameter, view in zip(parameters, views, strict=True):
                if self._is_view:
                    parameter.grad = view
                elif parameter.grad is not None:
                    parameter.grad.copy_(view)

        for index, parameter in enumerate(parameters):
            hooked: Any = parameter
            yield hooked.register_post_accumulate_grad_hook(lambda _, index=index: reduce(index))

    def micro_step(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Reduce gradients over the ranks only in the last micro-batch."""
        self._reduces = is_last
        return nullcontext()


def _buckets(parameters: Iterable[torch.Tensor], most: int) -> Iterator[list[torch.Tensor]]:
    """Yield the parameters of each bucket, all of one type; one is full at `most` bytes, the first at 1 MiB."""
    full, held = min(_FIRST_BUCKET, most), 0
    bucket: list[torch.Tensor] = []
    for parameter in parameters:
        bucket.append(parameter)
        held += parameter.numel() * parameter.element_size()
        if held >= full:
            yield bucket
            bucket, held, full = [], 0, most
    if bucket:
        yield bucket
