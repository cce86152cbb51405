"""Define what is known about an entire run: the times of its steps, their trends, and the state of the device."""

from __future__ import annotations

from typing import Final

from msgspec import field

from opanatomy.records.codec import Record


class SlowStep(Record, frozen=True, kw_only=True):
    """A step of the run that took far longer than the others, and what is known about it."""

    #: Numbered from 1 in loop order.
    number: int
    wall_ns: int
    #: Parts of it: waiting for a loader, Python's garbage collection, compiling, evaluating, saving.
    input_ns: int
    collecting_ns: int
    compiling_ns: int
    evaluating_ns: int = 0
    checkpointing_ns: int = 0


class CompilerEvent(Record, frozen=True, kw_only=True):
    """A graph break or recompilation of `torch.compile`: its place in the user's code, its reason, and its count."""

    #: `model.py:31 forward`.
    place: str
    reason: str
    count: int


class RunSeries(Record, frozen=True, kw_only=True):
    """The timed steps in order, as columns of equal length; a row covers `steps` steps from number `first` on.

    Times are sums over these steps in nanoseconds, except `longest_ns`, the longest step without evaluation and
    checkpoints, and `usual_ns`, the median step without these and compilation. `backward_ns` and `optimizer_ns` are
    host time. Bytes are read after steps: the minimum of allocated and host bytes, the maximum of reserved bytes, and
    the peak so far; 0 if not read.
    """

    first: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    wall_ns: tuple[int, ...] = ()
    longest_ns: tuple[int, ...] = ()
    usual_ns: tuple[int, ...] = ()
    input_ns: tuple[int, ...] = ()
    backward_ns: tuple[int, ...] = ()
    optimizer_ns: tuple[int, ...] = ()
    collecting_ns: tuple[int, ...] = ()
    compiling_ns: tuple[int, ...] = ()
    evaluating_ns: tuple[int, ...] = ()
    checkpointing_ns: tuple[int, ...] = ()
    allocated_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    host_bytes: tuple[int, ...] = ()


class StepLengths(Record, frozen=True, kw_only=True):
    """Steps that take `from_ns` or up to 9 % longer, without evaluation, checkpoints and compilation, and their sum."""

    from_ns: int
    steps: int
    usual_ns: int


class UpdatedBy(Record, frozen=True, kw_only=True):
    """Steps that end with an update of one optimizer, if a run has several, and whether some of them are recorded."""

    optimizer: str
    steps: int
    wall_ns: int
    recorded: bool


#: Reasons for an unusual clock: the device's heat, its power supply, a setting.
_HOLDS: Final = ("heat", "hardware slowdown", "power brake", "set clocks")


class DeviceState(Record, frozen=True, kw_only=True):
    """Clocks, power and temperature of a device over a period, as its driver reports them; `None` means not reported.

    `clock_mhz` and `memory_clock_mhz` are medians, and `power_w` is the mean, over the readings in which the device was
    busy; `temperature_c` is the highest. `reasons` has the driver's reasons for a lower clock, each with its number of
    readings. `energy_j` is from the device's own counter, over `seconds` and `steps` steps.
    """

    readings: int = 0
    seconds: float = 0.0
    steps: int = 0
    clock_mhz: int | None = None
    lowest_clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_limit_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    energy_j: float | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    #: Why no value is known.
    why_not: str | None = None

    @property
    def clock_share(self) -> float | None:
        """Return the clock as a fraction of the device's maximum."""
        return self.clock_mhz / self.clock_limit_mhz if self.clock_mhz and self.clock_limit_mhz else None

    @property
    def held_by(self) -> str | None:
        """Return the main reason for a reduced clock besides the power cap, under which GPUs train normally."""
        held = {name: count for name, count in self.reasons.items() if name in _HOLDS}
        most = max(held, key=lambda name: held[name], default=None)
        return most if most is not None and 2 * held[most] > self.readings else None

    @property
    def joules_per_step(self) -> float | None:
        """Return the energy per step."""
        return self.energy_j / self.steps if self.energy_j is not None and self.steps else None


class RunClock(Record, frozen=True, kw_only=True):
    """Wall-clock statistics of every step that was not recorded, except the first.

    Times are sums in nanoseconds. A wait for input is the time in which a `DataLoader` had no batch ready for the loop,
    outside evaluations.
    """

    steps: int
    wall_ns: int
    median_ns: int
    input_ns: int
    collections: int
    collecting_ns: int
    compiling_ns: int
    #: Stretches in which the model was in evaluation mode, or batches were loaded without gradients.
    evaluations: int = 0
    evaluating_ns: int = 0
    #: Steps in which something was saved, and the time in the calls that save.
    checkpoints: int = 0
    checkpointing_ns: int = 0
    #: Number of steps longer than twice the third quartile of step times, and the longest of them.
    slow_steps: int = 0
    slow: tuple[SlowStep, ...] = ()
    graph_breaks: tuple[CompilerEvent, ...] = ()
    recompilations: tuple[CompilerEvent, ...] = ()
    #: From the import of torch, or the recorder's start, to the end of the first step.
    start: SlowStep | None = None
    #: From the end of the last step on.
    end: SlowStep | None = None
    lengths: tuple[StepLengths, ...] = ()
    updated_by: tuple[UpdatedBy, ...] = ()
    series: RunSeries | None = None
    device: DeviceState | None = None

    @property
    def input_share(self) -> float:
        """Return the share of the steps spent waiting for input."""
        return self._usual_share(self.input_ns, "input_ns")

    @property
    def collecting_share(self) -> float:
        """Return the share of the steps spent in Python's garbage collection."""
        return self._usual_share(self.collecting_ns, "collecting_ns")

    def _usual_share(self, part_ns: int, name: str) -> float:
        """Return a part's share of the steps without evaluations, excluding the few that it mostly fills."""
        mostly = [step for step in self.slow if 2 * getattr(step, name) > step.wall_ns]
        few = mostly if self.slow_steps == len(self.slow) and len(mostly) <= self.steps // 20 else []
        wall = self.wall_ns - self.evaluating_ns - sum(step.wall_ns - step.evaluating_ns for step in few)
        return max(part_ns - sum(getattr(step, name) for step in few), 0) / wall if wall > 0 else 0.0


class Drift(Record, frozen=True, kw_only=True):
    """Steps that take longer, or shorter, at the end of a run: the median step time in its first and last tenth.

    `parts` has the change in host time of each known part of a step, and `rest` the change outside these parts.
    """

    first_ns: int
    last_ns: int
    parts: dict[str, int]


class Growth(Record, frozen=True, kw_only=True):
    """Memory that grows steadily over a run: `allocated`, `reserved` or `host`.

    `first_bytes` and `last_bytes` are the minima in the second and last tenth of the steps, which are `steps` steps
    apart. Growth of 1 GiB or more is confirmed.
    """

    kind: str
    first_bytes: int
    last_bytes: int
    steps: int
    confirmed: bool

    @property
    def bytes_per_step(self) -> float:
        """Return how much memory each step adds."""
        return (self.last_bytes - self.first_bytes) / self.steps


class VaryingPeak(Record, frozen=True, kw_only=True):
    """A peak that rises during a run while memory allocated after a step does not: batches vary, and nothing leaks."""

    first_bytes: int
    last_bytes: int
    base_bytes: int


class LeftOut(Record, frozen=True, kw_only=True):
    """Steps of a run that differ from the recorded ones: their number and time, out of all steps of the run.

    They take more than twice as long as a recorded step, without evaluation, checkpoints and compilation, or end with
    an update of an `optimizer` that no recorded step ends with. Of the `of_recorded` profiled steps, `recorded` are
    such steps.
    """

    steps: int
    of_steps: int
    wall_ns: int
    of_ns: int
    recorded: int = 0
    of_recorded: int = 0
    optimizer: str | None = None


class RunTrends(Record, frozen=True, kw_only=True):
    """How the steps of a run change over its length; empty for a steady run."""

    drift: Drift | None = None
    growth: tuple[Growth, ...] = ()
    peak: VaryingPeak | None = None
    left_out: tuple[LeftOut, ...] = ()
    #: Over the whole run, including evaluations and checkpoints, if the batch size of its steps is known.
    samples_per_second: float | None = None
