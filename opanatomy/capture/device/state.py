"""Monitor a device while steps run: clocks, power, temperature, throttling reasons.

One thread reads at most 20 times a second, but only before and after steps under the profiler, never during them. The
device's settings are not changed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from statistics import median
from typing import Any, Final

from opanatomy.capture.device import nvml
from opanatomy.capture.device.nvml import Limits, Reading
from opanatomy.records.run import DeviceState

#: The time between two readings grows with the run up to a second, so that a day has less than 100,000.
_SHORTEST_S, _LONGEST_S, _OF_RUN = 0.05, 1.0, 200
#: A device updates its energy counter about ten times a second: shorter spans are inaccurate.
_LEAST_S: Final = 1.0
IDLE, HEAT = "idle", "heat"
#: A device is cool at this temperature in degrees C, or when it has not cooled for this many seconds; maximum wait.
_COOL_C, _COOLING_S, _MOST_SECONDS, _SECOND = 50, 5, 60, 1.0
#: A time on `time.perf_counter_ns`.
_Span = tuple[int, int]


class DeviceWatch:
    """Readings of a device from its start on."""

    def __init__(self, device: str) -> None:
        self._index = int(device.partition(":")[2] or 0)
        self._stack = ExitStack()
        self._read: Callable[[], Reading] | None = None
        self._limits = Limits(None, None, None, None)
        self._why_not: str | None = None
        self._readings: list[tuple[int, Reading]] = []
        self._ended, self._resumed = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._resumed.set()
        #: When steps ran that are recorded, on the clock or under the profiler.
        self.spans: list[_Span] = []
        self.users = 0

    def start(self) -> None:
        """Begin to read."""
        try:
            self._limits, self._read = self._stack.enter_context(_readable(self._index))
        except Exception as error:  # pynvml's errors and amdsmi's are their own classes, and it may be missing
            import torch

            hip = torch.version.hip
            self._why_not = f"amdsmi does not answer ({error})" if hip else nvml.reason_of(error)
            return
        self.read()
        thread = threading.Thread(target=self._run, name="opanatomy: device", daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._resumed.set)
        self._stack.callback(self._ended.set)

    def stop(self) -> None:
        """End the thread."""
        self.read()
        self._stack.close()
        self._read = None

    def read(self) -> None:
        """Read now."""
        with self._lock:
            if self._read is not None:
                self._readings.append((time.perf_counter_ns(), self._read()))

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._ended.wait(min(max((time.monotonic() - begun) / _OF_RUN, _SHORTEST_S), _LONGEST_S)):
            self._resumed.wait()
            self.read()

    @contextmanager
    def around(self, *, reads: bool) -> Iterator[None]:
        """Read before and after the block, whose steps are recorded; inside of it only if it `reads`."""
        begun = time.perf_counter_ns()
        if not reads:
            self._resumed.clear()
        self.read()
        try:
            yield
        finally:
            self.read()
            self._resumed.set()
            self.spans.append((begun, time.perf_counter_ns()))

    def over(self, spans: Sequence[_Span] | None = None, *, steps: int = 0, energy: _Span | None = None) -> DeviceState:
        """Return the device state within the spans (default: all the time); `energy` is one span of `steps` steps."""
        if self._why_not is not None:
            return DeviceState(why_not=self._why_not)
        readings = [
            reading
            for at, reading in self._readings
            if spans is None or any(begin <= at <= end for begin, end in spans)
        ]
        working = [reading for reading in readings if IDLE not in reading.reasons] or readings
        held = Counter(reason for reading in working for reason in reading.reasons if reason != IDLE)
        # The energy is known between two readings.
        within = [
            (at, reading.energy_j)
            for at, reading in self._readings
            if reading.energy_j is not None and (energy is None or energy[0] <= at <= energy[1])
        ]
        seconds, joules = (within[-1][0] - within[0][0]) / 1e9 if within else 0.0, None
        if seconds < _LEAST_S:
            seconds = 0.0
        else:
            seconds, joules = round(seconds, 3), round((within[-1][1] or 0) - (within[0][1] or 0), 3)
        clocks, memory_clocks = _known(working, "clock_mhz"), _known(working, "memory_clock_mhz")
        powers = _known(working, "power_w")
        limits = self._limits
        return DeviceState(
            readings=len(working),
            seconds=seconds,
            steps=steps if joules is not None else 0,
            energy_j=joules,
            clock_mhz=round(median(clocks)) if clocks else None,
            lowest_clock_mhz=min(clocks, default=None),
            clock_limit_mhz=limits.clock_mhz,
            memory_clock_mhz=round(median(memory_clocks)) if memory_clocks else None,
            memory_clock_limit_mhz=limits.memory_clock_mhz,
            power_w=round(sum(powers) / len(powers), 1) if powers else None,
            power_limit_w=limits.power_w,
            temperature_c=max(_known(working, "temperature_c"), default=None),
            slowdown_c=limits.slowdown_c,
            reasons=dict(held.most_common()),
        )

    def cooled(self, told: Callable[[str], None]) -> None:
        """Wait until the device no longer throttles for heat and stops cooling, at most a minute."""
        temperatures: list[int] = []
        for _ in range(_MOST_SECONDS):
            self.read()
            reading = self._readings[-1][1] if self._readings else None
            if reading is None or reading.temperature_c is None:
                return
            temperatures.append(reading.temperature_c)
            falls = len(temperatures) <= _COOLING_S or temperatures[-1 - _COOLING_S] > temperatures[-1]
            if HEAT not in reading.reasons and (temperatures[-1] <= _COOL_C or not falls):
                return
            told(f"waiting for the device to cool ({temperatures[-1]} degrees C)")
            time.sleep(_SECOND)


def _known(readings: Sequence[Reading], name: str) -> list[Any]:
    return [value for reading in readings if (value := getattr(reading, name)) is not None]


@contextmanager
def _readable(index: int) -> Iterator[tuple[Limits, Callable[[], Reading]]]:
    """Yield a reader of the device: NVML, on AMD torch's interface to amdsmi."""
    import torch

    if not torch.version.hip:
        with nvml.readable(index) as found:
            yield found
        return

    def asked(question: Callable[[int], int]) -> int | None:
        try:
            return int(question(index)) or None
        except Exception:  # amdsmi's errors are its own classes; the thread that reads goes on
            return None

    def read() -> Reading:
        power = asked(torch.cuda.power_draw)
        return Reading(
            clock_mhz=asked(torch.cuda.clock_rate),
            memory_clock_mhz=None,
            power_w=None if power is None else float(power),
            temperature_c=asked(torch.cuda.temperature),
            energy_j=None,
            reasons=(),
        )

    torch.cuda.clock_rate(index)  # without amdsmi this says so
    yield Limits(None, None, None, None), read


_watches: dict[str, DeviceWatch] = {}


@contextmanager
def watching(device: str) -> Iterator[DeviceWatch | None]:
    """Yield the process's watch of a device, shared by all users; `None` if it is not a GPU."""
    if not device.startswith("cuda"):
        yield None
        return
    watch = _watches.setdefault(device, DeviceWatch(device))
    watch.users += 1
    if watch.users == 1:
        watch.start()
    try:
        yield watch
    finally:
        watch.users -= 1
        if not watch.users:
            _watches.pop(device, None)
            watch.stop()


@contextmanager
def undisturbed(device: str) -> Iterator[None]:
    """Keep a watch of the device, if there is one, from reading inside the block; it reads before and after."""
    watch = _watches.get(device)
    with nullcontext() if watch is None else watch.around(reads=False):
        yield
