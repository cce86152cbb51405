"""Train ranks together: Accelerate prepares model, optimizer and scheduler, and runs backward and update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.distributed.ranks import RankGroup, Ranks, is_sharded
from opanatomy.capture.model.parts import class_name, own_modules, stacks_of, unwrapped
from opanatomy.capture.silence import one_line, quiet_libraries
from opanatomy.capture.step.loss_scale import LossScale
from opanatomy.capture.step.stepper import Roots, Training, make_optimizer
from opanatomy.errors import CaptureError, OpanatomyError, UsageError
from opanatomy.options import DDP, FSDP2, PARALLEL, TP, RunOptions, spelled
from opanatomy.records.memory import is_out_of_memory
from opanatomy.records.workload import SharedWeights

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


# The groups that FSDP2 gathers: layers by the plan of the model, and modules that share a weight as one.


@contextmanager
def sharded_groups(module: torch.nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """Make `accelerator.prepare` shard `module` in the right groups inside the block.

    Shared weights must be in one group. Accelerate (1.15) ensures that only for input and output embeddings; BERT's
    head also shares its bias. These modules become a group here, which Accelerate then leaves alone.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    state: Any = accelerator.state
    model = _Model(module)
    state.fsdp_plugin.transformer_cls_names_to_wrap = sharded_classes(module)
    together = [group for group in tied_modules(module) if not {*map(id, group)} <= {*map(id, model.embeddings)}]
    for group in together:
        mesh, config = state.device_mesh, state.parallelism_config
        fully_shard(
            group,
            mesh=None if mesh is None else mesh[tuple(config.fsdp_dim_names)],
            reshard_after_forward=False,
            mp_policy=state.fsdp_plugin.mixed_precision_policy or MixedPrecisionPolicy(),
        )
    head = model.output
    if not together or head is None or isinstance(head, FSDPModule):
        yield
        return
    # The head is inside this group and would be sharded a second time.
    hidden: Any = module
    hidden.get_output_embeddings = lambda: None
    try:
        yield
    finally:
        del hidden.get_output_embeddings


class _Model:
    """The embeddings of a model that declares them."""

    def __init__(self, module: Any) -> None:
        self.input = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
        self.output = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None

    @property
    def embeddings(self) -> tuple[torch.nn.Module, ...]:
        return tuple(part for part in (self.input, self.output) if part is not None)


def sharded_classes(module: torch.nn.Module) -> list[str]:
    """Return the classes whose instances are gathered separately.

    These are the classes that the model declares unsplittable, except owners of the input embeddings, which Accelerate
    gathers separately; else the classes of its layers.
    """
    embeddings = _Model(module).input
    with_embeddings = {
        type(part).__name__ for part in module.modules() if any(inner is embeddings for inner in part.modules())
    }
    there = {type(part).__name__ for part in module.modules()} - with_embeddings
    whole = [name for name in getattr(module, "_no_split_modules", None) or () if name in there]
    return whole or sorted({stack.kind for stack in stacks_of(module)} & there)


def tied_modules(module: torch.nn.Module) -> list[list[torch.nn.Module]]:
    """Return groups of modules that share weights, disjoint in their weights; of nested modules the outermost."""
    groups: list[tuple[set[int], list[torch.nn.Module]]] = []
    for part in module.modules():
        weights, members = {id(weight) for weight in part._parameters.values() if weight is not None}, [part]
        for group in [group for group in groups if group[0] & weights]:
            groups.remove(group)
            weights |= group[0]
            members = [*group[1], *members]
        if weights:
            groups.append((weights, members))
    tied = []
    for _, members in groups:
        inside = {id(inner) for part in members for inner in part.modules() if inner is not part}
        if len(members) > 1:
            tied.append([part for part in members if id(part) not in inside])
    return tied


# The weights that ranks share: those DDP reduces, and those each group of FSDP2 gathers and scatters.


def shared_weights(modules: Iterable[torch.nn.Module], paths: Mapping[int, str]) -> tuple[SharedWeights, ...]:
    """Return the weights that ranks share; the outer of `modules` may be wrappers, `paths` has each path by `id`.

    Call it after a step, when FSDP's repeated gathers are settled. Data that this torch does not expose is omitted.
    """
    shared: list[SharedWeights] = []
    for module in modules:
        for part in module.modules():
            names = {kind.__name__ for kind in type(part).__mro__}
            if "DistributedDataParallel" in names and not getattr(part, "_comm_hooks", None):
                wrapper: Any = part
                ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
                named = wrapper.module.named_parameters()
                size = _bytes(weight for name, weight in named if weight.requires_grad and name not in ignored)
                shared.append(
                    SharedWeights(
                        module="",
                        ranks=wrapper.process_group.size(),
                        gathered_bytes=0,
                        reduced_bytes=size,
                        trained_bytes=size,
                        weight_bytes=_bytes(part.parameters()),
                    )
                )
            elif "FSDPModule" in names:
                with suppress(AttributeError):
                    shared += _weights_in_shards(part, paths)
    return tuple(dict.fromkeys(shared))


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def bucket_bytes(module: torch.nn.Module) -> int | None:
    """Return the size in bytes of DDP's gradient buckets; 0 if gradients are views of them.

    `None` without DDP, or if it does not report them.
    """
    for part in module.modules():
        if any(kind.__name__ == "DistributedDataParallel" for kind in type(part).__mro__):
            wrapper: Any = part
            account = wrapper._get_ddp_logging_data()
            if account.get("gradient_as_bucket_view"):
                return 0
            sizes = account.get("rebuilt_bucket_sizes") or account.get("bucket_sizes")
            return sum(int(size) for size in sizes.split(",")) if sizes else None
    return None


def _weights_in_shards(module: Any, paths: Mapping[int, str]) -> Iterator[SharedWeights]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    for group in filter(None, groups):
        mesh = group.mesh_info
        # The parts of a parameter have the same number of elements on all ranks.
        parts = [int(parameter.padded_sharded_param_size.numel()) for parameter in group.fsdp_params]
        sizes = [part * mesh.shard_mesh_size for part in parts]
        # FSDP's own ranges name a group by the paths of its modules, in their order in the model.
        inside = {id(unwrapped(part)) for part in group.modules}
        name = ", ".join(path for number, path in paths.items() if number in inside)
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
            module=name,
            ranks=mesh.shard_mesh_size,
            gathered_bytes=gathered,
            reduced_bytes=reduced,
            regathered=group._reshard_after_forward,
            replicas=getattr(mesh, "replicate_mesh_size", 1),
            weight_bytes=sum(weights),
            trained_bytes=sum(
                size
                for size, parameter in zip(weights, group.fsdp_params, strict=True)
                if parameter.sharded_param.requires_grad
            ),
        )


# Cut the layers of a model over the ranks, by its plan in transformers.


_TOO_OLD: Final = "{} needs transformers 5.23 or later - update it"


def cut(module: torch.nn.Module, accelerator: Accelerator) -> None:
    """Cut the weights of `module`, equal on all ranks, in place; `UsageError` for a module without a plan."""
    asked = spelled(PARALLEL, TP)
    try:
        from transformers.distributed import DistributedConfig
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError as error:
        raise UsageError(_TOO_OLD.format(asked)) from error
    model: Any = module
    state: Any = accelerator.state
    if not getattr(model, "supports_tp_plan", False):
        raise UsageError(
            f"{asked}: {class_name(module)} has no tensor-parallel plan - use {spelled(PARALLEL, DDP)} or"
            f" {spelled(PARALLEL, FSDP2)}"
        )
    if not hasattr(model, "_resolve_parallel_plans"):
        raise UsageError(_TOO_OLD.format(asked))
    ranks = accelerator.num_processes
    try:
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=ranks))[0]
        tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        tied -= {name for name, _ in model.named_parameters()}
        plan = {name: style for name, style in plan.items() if name not in tied}
        apply_tensor_parallelism(model, state.device_mesh[TP], plan)
        if tied:
            model.tie_weights()
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"{asked}: {class_name(module)} cannot be split over {ranks} ranks: {one_line(error)}"
        ) from error
    model._tp_size = ranks


class RankTraining(Training):
    """Training on one rank of DDP/FSDP, where the module synchronizes gradients itself."""

    #: In the second step DDP rebuilds its buckets in gradient order and broadcasts that order to the other ranks.
    counted_step = 3

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @property
    def is_shared(self) -> bool:
        """Return true: the other ranks take part in each step."""
        return True

    def shared_weights(self, module: torch.nn.Module) -> tuple[SharedWeights, ...]:
        """Return the weights of the module that ranks share, by its own paths."""
        paths = {id(part): path for path, part in own_modules(module)}
        return shared_weights([module if self.model is None else self.model], paths)

    def longest_ns(self, duration_ns: int) -> int:
        """Return the longest of the ranks' durations."""
        return self.ranks.longest(duration_ns)

    def any_rank(self, is_so: bool) -> bool:
        """Return whether it is so on any rank."""
        return bool(self.ranks.longest(is_so))

    def all_failed(self, *, failed: bool) -> bool:
        """Return whether the attempted step failed on every rank."""
        return self.ranks.all_failed(failed=failed)


class SharedTraining(RankTraining):
    """Training on one rank whose module Accelerate prepares."""

    def __init__(self, group: RankGroup, module: torch.nn.Module, options: RunOptions) -> None:
        super().__init__(group.ranks)
        self._accelerator, self._parallel = group.accelerator, group.parallel
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
                import accelerate

                raise CaptureError(
                    f"accelerate {accelerate.__version__} cannot prepare this model for"
                    f" {spelled(PARALLEL, group.parallel)}: {one_line(error)} - update accelerate, or choose"
                    " another method"
                ) from error

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
        elif is_sharded(self._parallel):  # Accelerate shards a model only together with its optimizer
            self.model, _ = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.0))
        else:
            self.model = accelerator.prepare(module)

    def micro_step(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Reduce gradients over the ranks only in the last micro-batch."""
        return nullcontext() if is_last or self.model is None else self._accelerator.no_sync(self.model)

    def backward(self, roots: Roots, *, parts: int, scale: LossScale | None) -> None:
        """Run backward from the loss by Accelerate, which divides it by the number of micro-batches."""
        if len(roots.tensors) != 1 or roots.gradients[0] is not None:
            super().backward(roots, parts=parts, scale=scale)
            return
        (loss,) = roots.tensors if scale is None else scale.scaled(roots.tensors)
        self._accelerator.backward(loss)

    def bucket_bytes(self) -> int | None:
        """Return the bytes of DDP's gradient buckets; 0 if gradients are views of them, `None` without DDP."""
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


def _constant(_step: int) -> float:
    return 1.0
