"""How a step trains: its backward, its update, and what it decides; of one process here, of ranks together in
`opanatomy.capture.distributed`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from opanatomy.capture.step.loss_scale import LossScale
from opanatomy.capture.step.roots import Roots, averaged
from opanatomy.records.workload import SharedWeights

if TYPE_CHECKING:
    import torch


class Training:
    """The training of one process."""

    #: What forward is called on, and the optimizer of its parameters, where these are made already.
    model: torch.nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None

    #: The step of the warm-up in which nothing happens any more that happens only once.
    counted_step = 2

    @property
    def is_shared(self) -> bool:
        """Whether other ranks take part in each step."""
        return False

    def micro_step(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Is open around forward and backward of a micro-batch."""
        return nullcontext()

    def backward(self, roots: Roots, *, parts: int, scale: LossScale | None) -> None:
        """Run backward from `roots`, of one of `parts` micro-batches."""
        import torch

        loss = averaged(roots, parts) if parts > 1 else roots.tensors
        torch.autograd.backward(loss if scale is None else scale.scaled(loss), roots.gradients)

    def clip(self, parameters: Iterable[torch.Tensor], norm: float) -> None:
        """Scale the gradients down to this norm of all of them."""
        from torch.nn.utils import clip_grad_norm_

        clip_grad_norm_(parameters, norm)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer."""
        optimizer.step()

    def after_update(self) -> None:
        """The weights are updated; not a part of the update."""

    def shared_weights(self, module: torch.nn.Module) -> tuple[SharedWeights, ...]:
        """The weights of `module` that ranks share, after a step."""
        return ()

    def bucket_bytes(self) -> int | None:
        """The buckets in which DDP reduces gradients; `None` without DDP."""
        return None

    # ----------------------------------------------------------------------------------- what all ranks must do alike

    def longest_ns(self, duration_ns: int) -> int:
        """The longest of the ranks' durations."""
        return duration_ns

    def any_rank(self, is_so: bool) -> bool:
        """Whether it is so on any rank."""
        return is_so

    def all_failed(self, *, failed: bool) -> bool:
        """Whether a step that was tried failed on this rank, and on all others too, so that all try again.

        `CaptureError` where it failed on some only: these have left the others behind.
        """
        return failed
