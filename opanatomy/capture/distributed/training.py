"""The training of ranks together: model, optimizer and scheduler prepared by Accelerate, backward and update by it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from opanatomy.capture.distributed.plugins import is_sharded
from opanatomy.capture.distributed.ranks import Joined, Ranks
from opanatomy.capture.distributed.sharding import sharded_groups
from opanatomy.capture.distributed.shared_weights import bucket_bytes, shared_weights
from opanatomy.capture.distributed.tensor_parallel import cut
from opanatomy.capture.model.quiet import one_line, quiet_libraries
from opanatomy.capture.model.wrappers import own_modules
from opanatomy.capture.step.loss_scale import LossScale
from opanatomy.capture.step.roots import Roots
from opanatomy.capture.step.stepper import make_optimizer
from opanatomy.capture.step.training import Training
from opanatomy.errors import CaptureError, OpanatomyError
from opanatomy.option_values import spelled
from opanatomy.options import PARALLEL, TP
from opanatomy.records.out_of_memory import is_out_of_memory
from opanatomy.records.workload import SharedWeights
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch


class RankTraining(Training):
    """The training of a rank whose module shares its steps with those of the others by itself."""

    #: In the second step DDP makes its buckets anew, in the order in which gradients came, and tells the other ranks.
    counted_step = 3

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @property
    def is_shared(self) -> bool:
        """The other ranks take part in each step."""
        return True

    def shared_weights(self, module: torch.nn.Module) -> tuple[SharedWeights, ...]:
        """The weights of the module that ranks share, by its own paths."""
        paths = {id(part): path for path, part in own_modules(module)}
        return shared_weights([module if self.model is None else self.model], paths)

    def longest_ns(self, duration_ns: int) -> int:
        """The longest of the ranks' durations."""
        return self.ranks.longest(duration_ns)

    def any_rank(self, is_so: bool) -> bool:
        """Whether it is so on any rank."""
        return bool(self.ranks.longest(is_so))

    def all_failed(self, *, failed: bool) -> bool:
        """Whether the step that was tried failed on every rank."""
        return self.ranks.all_failed(failed=failed)


class SharedTraining(RankTraining):
    """The training of a rank whose module Accelerate prepares."""

    def __init__(self, joined: Joined, module: torch.nn.Module, options: RunOptions) -> None:
        super().__init__(joined.ranks)
        self._accelerator, self._parallel = joined.accelerator, joined.parallel
        self._prepared: Any = None
        self._scheduler: Any = None
        with quiet_libraries():
            try:
                self._share(module, options)
            except OpanatomyError:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raise _refusal(error, joined.parallel) from error

    def _share(self, module: torch.nn.Module, options: RunOptions) -> None:
        if self._parallel == TP:
            cut(module, self._accelerator)
        if is_sharded(self._parallel):
            with sharded_groups(module, self._accelerator):
                self._prepare(module, options)
        elif not options.inference:  # without a backward Accelerate has nothing to prepare
            self._prepare(module, options)

    def _prepare(self, module: torch.nn.Module, options: RunOptions) -> None:
        import torch

        accelerator: Any = self._accelerator
        if options.optimizer and not options.inference:
            self.optimizer = make_optimizer(options.optimizer, module)
            scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, _constant)
            self.model, self._prepared, self._scheduler = accelerator.prepare(module, self.optimizer, scheduler)
        elif is_sharded(self._parallel):  # Accelerate shards a model only with an optimizer of it
            self.model, _ = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.0))
        else:
            self.model = accelerator.prepare(module)

    def micro_step(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """The ranks reduce their gradients in the last micro-batch only."""
        return nullcontext() if is_last or self.model is None else self._accelerator.no_sync(self.model)

    def backward(self, roots: Roots, *, parts: int, scale: LossScale | None) -> None:
        """Run backward from the loss by Accelerate, which divides it by the number of micro-batches."""
        if len(roots.tensors) != 1 or roots.gradients[0] is not None:
            super().backward(roots, parts=parts, scale=scale)
            return
        (loss,) = roots.tensors if scale is None else scale.scaled(roots.tensors)
        self._accelerator.backward(loss)

    def bucket_bytes(self) -> int | None:
        """The buckets in which DDP reduces gradients; 0 where these are views of them, `None` without DDP."""
        return None if self.model is None else bucket_bytes(self.model)

    def clip(self, parameters: Iterable[torch.Tensor], norm: float) -> None:
        """Clip by the norm over the gradients of all ranks."""
        self._accelerator.clip_grad_norm_(parameters, norm)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer as Accelerate prepared it."""
        self._prepared.step()

    def after_update(self) -> None:
        """Step the scheduler, whose rate is constant."""
        self._scheduler.step()


def _refusal(error: Exception, parallel: str) -> CaptureError:
    """What to say where Accelerate, or what it calls, cannot handle a model."""
    import accelerate

    return CaptureError(
        f"accelerate {accelerate.__version__} cannot prepare this model for {spelled(PARALLEL, parallel)}:"
        f" {one_line(error)} - update it, or take another way"
    )


def _constant(_step: int) -> float:
    return 1.0
