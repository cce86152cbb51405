"""What is kept of one rank's trace for the report over all ranks: its anatomy, and columns of what it communicated.

Times are nanoseconds since 1970 where the trace counts from there, and of its own clock else; -1 is "not known".
"""

from __future__ import annotations

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.columns import Bool, Categorical, Int64


class CollectiveCalls(Struct, frozen=True, kw_only=True):
    """One row a collective call of a rank, in the order of their starts.

    A call lasts from the start of its first device event to the end of its last one; on the CPU it is the annotation
    that the backend leaves on its own threads.
    """

    #: `all_reduce` and the like; by the host's record, where there is one (`named`), else by the kernel's name.
    collective: Categorical[str]
    named: Bool
    #: The process group by its name and its ranks, as far as the trace has them; none where it has neither.
    group: Categorical[str]
    group_size: Int64
    #: The number of the call within its group, where the trace has one.
    sequence: Int64
    dtype: Categorical[str]
    sent_bytes: Int64
    received_bytes: Int64
    #: When the host called it, and how long that call took.
    launched_ns: Int64
    launching_ns: Int64
    #: When the host last returned from waiting for the device before that call. On the CPU that is the call itself:
    #: a collective that has ended by then may have been waited for.
    synchronized_ns: Int64
    start_ns: Int64
    end_ns: Int64
    #: Whether it is work of the window's steps, and not of others that runs among them.
    inside: Bool
    phase: Categorical[str]
    #: The module that it serves.
    module: Categorical[str]


class Spans(Struct, frozen=True, kw_only=True):
    """Disjoint intervals, in order."""

    start_ns: Int64
    end_ns: Int64


class StepSpans(Struct, frozen=True, kw_only=True):
    """One row a step of a rank, in order: when it was, how long the rank computed, and how long it did anything.

    The times are unions: `computing_ns` of the window's work that is no communication, `busy_ns` of all work, the gaps
    between the device events of one collective included, `outside_ns` what only work of before (or after) the window
    fills of that. `began_ns` is when the host began the step, -1 where the trace does not say.
    """

    number: Int64
    began_ns: Int64
    start_ns: Int64
    end_ns: Int64
    computing_ns: Int64
    outside_ns: Int64
    busy_ns: Int64


class Exchanged(Struct, frozen=True, kw_only=True):
    """What a rank communicated, and when it computed while it did."""

    calls: CollectiveCalls
    #: When the rank computed for the steps of the window while one of `calls` ran.
    hiding: Spans
    steps: StepSpans


class RankSummary(Struct, frozen=True, kw_only=True):
    """One rank: small, whatever the size of its trace."""

    anatomy: Anatomy
    calls: CollectiveCalls
    #: When the rank computed for the steps of the window while one of `calls` ran.
    hiding: Spans
    steps: StepSpans
