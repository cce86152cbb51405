"""Write stacks with their times, one per line, for flame graphs (inferno, flamegraph.pl, speedscope): `a;b;c 1200`.

A stack is the phase, then the lines of the user's code if they are known, else the modules, then the class of the work.
Times are nanoseconds over all profiled steps, so that they sum to the time of all classes exactly.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from opanatomy.records.reports import Report
from opanatomy.report.formats.speedscope import LINES, MODULES, checked, stacks_of
from opanatomy.report.names import printable
from opanatomy.report.section import Format, Page


def folded_stacks(report: Report, page: Page) -> str:
    """Return the stacks; raise `UsageError` unless the report covers one run."""
    anatomy = checked(report, "folded")
    times: Counter[str] = Counter()
    for phase, stack, ns in stacks_of(anatomy, LINES if anatomy.lines else MODULES):
        times[";".join(printable(name).replace(";", ",") for name in (phase.value, *stack))] += ns
    return "".join(f"{stack} {ns}\n" for stack, ns in sorted(times.items()))


FORMAT: Final = Format(ending=".folded", write=folded_stacks, machine_readable=True)
