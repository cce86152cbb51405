"""Define the typed shape of trace events: only fields that some stage needs are decoded, the rest is skipped.

Kineto spelled several keys differently in 2021 (`external id`, `Input dims`); both spellings are fields here. Shapes,
types, strides and constants stay raw JSON: a trace has hundreds of distinct ones and hundreds of thousands of copies.

`Event` fits every event. `event_of_category` makes a record for one category, with only the fields that are read, so
that most of the text of a trace is skipped.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache, lru_cache
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from msgspec import Meta, Raw, Struct, defstruct, field, structs

# The kinds of event categories, under their names of all years.


OPERATOR, ANNOTATION, LAUNCH, KERNEL, MEMCPY, MEMSET, HOST_NODE, IGNORED, FOREIGN, PYTHON, OVERHEAD = range(11)

#: Categories by lowercase name (capitalized in 2021). Events of any other category on a stream are read as kernels.
CATEGORIES: Final = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION,
    "cuda_runtime": LAUNCH, "cuda_driver": LAUNCH, "runtime": LAUNCH, "hip_runtime": LAUNCH, "driver": LAUNCH,
    "xpu_runtime": LAUNCH, "xpu_driver": LAUNCH, "mtia_runtime": LAUNCH, "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH, "hpu_op": LAUNCH, "glow_runtime": LAUNCH,
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET,
    "concurrent_kernel": KERNEL, "mtia_insight": KERNEL, "mtia_ccp_events": KERNEL, "hpu_kernel": KERNEL,
    # A host callback that a graph runs: it has the stream that waits for it (torch 2.15, Cuspy).
    "graph_host_node": HOST_NODE,
    "python_function": PYTHON, "overhead": OVERHEAD, "gpu_user_annotation": IGNORED,
    "cuda_sync": IGNORED, "cuda_event": IGNORED, "xpu_sync": IGNORED, "cuda_profiler_range": IGNORED, "trace": IGNORED,
    "cpu_instant_event": IGNORED, "external_correlation": IGNORED, "collective_comm": IGNORED,
    "gpu_pm_counter": IGNORED, "hardware_counters": IGNORED, "graph_event_node": IGNORED,
    "mtia_counters": IGNORED, "xpu_scope_profiler": IGNORED,
    # What `--trace` adds (write.py).
    "opanatomy": IGNORED,
    # Flows from a launch to its device work; correlation ids say the same.
    "ac2g": IGNORED, "async_cpu_to_gpu": IGNORED, "async": IGNORED,
}  # fmt: skip
#: Names, current and of 2022, of flows from an operator to its autograd node.
DIFFERENTIATION_FLOWS: Final = frozenset(("fwdbwd", "forward_backward"))

#: The process of operators, which have no category, in the lists of `torch.autograd.profiler` (torch 0.4 on).
LEGACY_OPERATORS: Final = "CPU functions"
#: How the category of its flows from an operator to a device begins; the name of the device follows.
LEGACY_FLOW: Final = "cpu_to_"

#: Category and name, unchanged over the years, of instant events for allocations and frees.
INSTANT: Final = "cpu_instant_event"
MEMORY: Final = "[memory]"


def kind_of(category: str | None) -> int:
    """Return the kind of the events of a category."""
    return IGNORED if category is None else CATEGORIES.get(category.lower(), FOREIGN)


class Kinds(dict["str | None", int]):
    """The kind of each category, looked up once."""

    def __missing__(self, category: str | None) -> int:
        self[category] = kind = kind_of(category)
        return kind


#: An integer that fits a column; an event with a larger one is decoded field by field, without that number.
Number: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
#: Valid times of a trace in microseconds, 1938 to 2096 if counted from 1970, and the maximum duration.
TIMES_US = (-1e15, 4e15)
LONGEST_US = 1e13
Time: TypeAlias = Annotated[float, Meta(ge=TIMES_US[0], le=TIMES_US[1])]
Duration: TypeAlias = Annotated[float, Meta(ge=-LONGEST_US, le=LONGEST_US)]


class Args(Struct, gc=False):
    """The `args` of an event; a missing number is -1."""

    external_id: Number | None = field(default=-1, name="External id")
    external_id_2021: Number | None = field(default=-1, name="external id")
    correlation: Number | None = -1
    sequence: Number | None = field(default=-1, name="Sequence number")
    sequence_2021: Number | None = field(default=-1, name="Seq number")
    forward_thread: Number | None = field(default=-1, name="Fwd thread id")
    dims: Raw = field(default=Raw(), name="Input Dims")
    dims_2021: Raw = field(default=Raw(), name="Input dims")
    types: Raw = field(default=Raw(), name="Input type")
    strides: Raw = field(default=Raw(), name="Input Strides")
    constants: Raw = field(default=Raw(), name="Concrete Inputs")
    device: Number | str | None = None
    stream: Number | str | None = None
    #: The unit of an Ascend device that did a task; torch_npu gives its rows no category.
    task_type: Raw = field(default=Raw(), name="Task Type")
    #: The texts of metadata events `process_name` and `process_labels`.
    process_name: Raw = field(default=Raw(), name="name")
    process_labels: Raw = field(default=Raw(), name="labels")
    blocks_per_sm: float | str | None = field(default=None, name="blocks per SM")
    occupancy: float | str | None = field(default=None, name="est. achieved occupancy %")
    grid: Raw = Raw()
    block: Raw = Raw()
    #: A CUDA graph node, with or without its graph, and torch's annotations of it (torch 2.12 and later): its module,
    #: `backward` or nothing, and the name given by the program.
    graph: Number | None = field(default=-1, name="graph id")
    node: Number | None = field(default=-1, name="graph node id")
    module_fqn: Raw = Raw()
    module_name: Raw = Raw()
    autograd_phase: Raw = Raw()
    marked: Raw = field(default=Raw(), name="str")
    #: The two ends of a copy (`HtoD`), if its name does not say them (torch 2.15, Cuspy).
    copy_kind: Number | str | None = field(default=None, name="copy kind")
    #: The fields of a collective: `record_param_comms` and NCCL kernels of torch 2.2 and later.
    collective: Raw = field(default=Raw(), name="Collective name")
    in_elements: Raw = field(default=Raw(), name="In msg nelems")
    out_elements: Raw = field(default=Raw(), name="Out msg nelems")
    group_size: Raw = field(default=Raw(), name="Group size")
    collective_dtype: Raw = field(default=Raw(), name="dtype")
    group_name: Raw = field(default=Raw(), name="Process Group Name")
    group_ranks: Raw = field(default=Raw(), name="Process Group Ranks")
    #: The number of the call within its group, in NCCL's records from the spring of 2026 on (torch 2.13).
    group_sequence: Raw = field(default=Raw(), name="Seq")
    #: Fields of `[memory]` events; `bytes` are below 0 for a free. In 2021 there were only bytes and device.
    bytes: Number | None = field(default=0, name="Bytes")
    address: Number | None = field(default=-1, name="Addr")
    total_allocated: Number | None = field(default=-1, name="Total Allocated")
    total_reserved: Number | None = field(default=-1, name="Total Reserved")
    device_type: Number | None = field(default=-1, name="Device Type")
    device_id: Number | None = field(default=-1, name="Device Id")


class Event(Struct, gc=False):
    """One event of `traceEvents`; `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number | str | None = None
    tid: Number | str | None = None
    ts: Time | None = None
    dur: Duration | None = None
    args: Args | None = None
    #: The value that both ends of a flow share.
    id: Number | str | None = None


class ExactEvent(Event, gc=False):
    """An event whose time needs more digits than a float has (nanoseconds since 1970)."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


# ------------------------------------------------------------------------------------------- events of one category

_INTERVAL: Final = ("ph", "name", "pid", "tid", "ts", "dur", "args")
_COLLECTIVE: Final = (
    "collective", "in_elements", "out_elements", "group_size", "collective_dtype", "group_name", "group_ranks",
    "group_sequence",
)  # fmt: skip
_HOST_ARGS: Final = (
    "external_id", "sequence", "forward_thread", "dims", "types", "strides", "constants", "external_id_2021",
    "sequence_2021", "dims_2021", *_COLLECTIVE,
)  # fmt: skip
_LAUNCH_ARGS: Final = ("external_id", "correlation", "external_id_2021")
_WORK_ARGS: Final = (
    "external_id", "device", "stream", "correlation", "blocks_per_sm", "occupancy", "grid", "block", "copy_kind",
    "external_id_2021", "graph", "node", "module_fqn", "module_name", "autograd_phase", "marked", "process_name",
    *_COLLECTIVE,
)  # fmt: skip
_MEMORY_ARGS: Final = ("bytes", "address", "total_allocated", "total_reserved", "device_type", "device_id")
_ARGS: Final = {
    OPERATOR: _HOST_ARGS,
    ANNOTATION: _HOST_ARGS,
    LAUNCH: _LAUNCH_ARGS,
    KERNEL: _WORK_ARGS,
    MEMCPY: _WORK_ARGS,
    MEMSET: _WORK_ARGS,
    HOST_NODE: (),
}


@lru_cache(maxsize=256)
def event_of_category(category: str) -> type[Event]:
    """Return an `Event` type of one category with the fields that are read; the others are constants of the class."""
    kind = kind_of(category)
    if category in DIFFERENTIATION_FLOWS:
        return _event(category, {"ph": str, **_types_of(Event, ("id", "pid", "tid", "ts"))})
    if category == INSTANT:
        return _event(category, {**_types_of(Event, ("ph", "name", "pid", "tid", "ts")), "args": _args(_MEMORY_ARGS)})
    if kind == FOREIGN:
        return _event(category, _types_of(Event, (*_INTERVAL, "id")))
    if kind == IGNORED:
        return _event(category, {})
    if kind == PYTHON:
        return _event(category, _types_of(Event, ("name", "pid", "tid", "ts", "dur")))
    if kind == OVERHEAD:
        return _event(category, _types_of(Event, ("name", "ts", "dur")))
    # An event that is not an interval (in 2021 memory events had the category of operators), or lacks a name or time,
    # does not fit.
    types = _types_of(Event, _INTERVAL) | {"ph": Literal["X"], "name": str, "ts": Time}
    return _event(category, {**types, "args": _args(_ARGS[kind])}, required=("name", "ts"))


def category_of(event: type[Event]) -> str | None:
    """Return the category that a record is made for; `None` if it fits every event."""
    category = vars(event).get("cat")
    return category if isinstance(category, str) else None


def _event(category: str, types: dict[str, Any], required: tuple[str, ...] = ()) -> type[Event]:
    defaults = dict(zip(Event.__struct_fields__, Event.__struct_defaults__, strict=True))
    constants = {name: value for name, value in defaults.items() if name not in types}
    fields: Any = [(name, kind) if name in required else (name, kind, defaults[name]) for name, kind in types.items()]
    return cast(
        "type[Event]",
        defstruct(
            "CategoryEvent",
            fields,
            gc=False,
            kw_only=True,
            tag=category,
            tag_field="cat",
            namespace=constants | {"cat": category} | ({} if types else {"ph": None}),
        ),
    )


def _args(names: tuple[str, ...]) -> Any:
    known = _fields_of(Args)
    fields: Any = [
        (name, known[name].type, field(default=known[name].default, name=known[name].encode_name)) for name in names
    ]
    return defstruct("CategoryArgs", fields, gc=False) | None


def _types_of(struct: type[Struct], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: item.type for name, item in _fields_of(struct).items() if name in names}


@cache
def _fields_of(struct: type[Struct]) -> dict[str, structs.FieldInfo]:
    """Return a record's fields; their types are evaluated once."""
    return {item.name: item for item in structs.fields(struct)}
