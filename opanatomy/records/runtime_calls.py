"""Name the calls of a device's runtime or driver by what they do: CUDA, HIP, Intel's `ur...` and `ze...`, Ascend."""

from __future__ import annotations

import re
from typing import Final

from opanatomy.records.patterns import regex

_LAUNCH: Final = r"Launch(?!HostFunc)|CommandBufferEnqueue"
_COPY: Final = r"Memcpy(?!\w*Node)"

#: Calls that launch kernels or graphs, and those among them that launch a whole graph.
LAUNCHES: Final = regex(_LAUNCH, re.IGNORECASE)
LAUNCHES_GRAPH: Final = regex(r"GraphLaunch|CommandBufferEnqueue", re.IGNORECASE)
#: Calls that start work: launches, copies and fills.
STARTS_WORK: Final = regex(rf"{_LAUNCH}|{_COPY}|Memset(?!\w*Node)|USMFill|EnqueueMem", re.IGNORECASE)
#: Those whose work leaves an event: a fill leaves none where the library has nothing to fill.
STARTS_RECORDED_WORK: Final = regex(rf"{_LAUNCH}|{_COPY}", re.IGNORECASE)

_SYNCHRONIZES: Final = r"Synchronize|^ur(?:EventWait|QueueFinish)"
_BLOCKING_COPY: Final = r"^(?:cuda|hip)Memcpy(?:2D|3D)?$|^hipMemcpyWithStream$|^cuMemcpy[DH]to[DH](?!\w*Async)"
#: Calls that only wait for the device. The others in which the host waits for it are copies that return when they are
#: done, of which only those to the host are sure to: the work that they wait for is their own as well.
SYNCHRONIZES: Final = regex(_SYNCHRONIZES)
BLOCKING_COPIES: Final = regex(_BLOCKING_COPY)
WAITS: Final = regex(f"{_SYNCHRONIZES}|{_BLOCKING_COPY}")
#: Calls that wait for all work of a device, and for all of a stream.
WAITS_FOR_DEVICE: Final = regex(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
WAITS_FOR_STREAM: Final = regex(r"^(?:cuda|hip|cu)StreamSynchronize")

#: Calls that record an event in a stream, let a stream wait for one, or for an event or a value in memory.
RECORDS_EVENT: Final = regex(r"EventRecord")
STREAM_WAITS_FOR_EVENT: Final = regex(r"StreamWaitEvent")
STREAM_WAITS: Final = regex(r"StreamWait(?:Event|Value)")

#: Calls that return device memory to the driver.
FREES: Final = regex(r"^(?:cuda|hip)Free(?!Host)")
