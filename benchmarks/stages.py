"""Where the processor time of an analysis goes, by stage or by function.

    python benchmarks/stages.py TRACE [--functions N]

prints the stages as JSON, or the N functions that take most.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The names in `opanatomy.pipeline` that are the stages; what is left of the analysis is classification and cost.
STAGES = {"read": "read_trace", "attribute": "attribute", "anatomy": "build_anatomy"}
REST = "classify and cost"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="the N that take most, by cProfile")
    arguments = parser.parse_args()
    if arguments.functions:
        print_functions(arguments.trace, arguments.functions)
    else:
        print(json.dumps(stages_of(arguments.trace)))


def stages_of(trace: Path) -> dict[str, int]:
    """Stage -> processor time in nanoseconds, in order."""
    before = time.process_time_ns()
    from opanatomy import pipeline
    from opanatomy.report.formats.json import json_report

    times = {"imports": time.process_time_ns() - before, **dict.fromkeys(STAGES, 0)}
    for stage, name in STAGES.items():
        setattr(pipeline, name, _timed(getattr(pipeline, name), stage, times))
    before = time.process_time_ns()
    anatomy = pipeline.summary_of_trace(trace).anatomy
    whole = time.process_time_ns() - before
    before = time.process_time_ns()
    json_report(anatomy)
    report = time.process_time_ns() - before
    rest = whole - sum(times[stage] for stage in STAGES)
    return {
        "imports": times["imports"],
        "read": times["read"],
        "attribute": times["attribute"],
        REST: rest,
        "anatomy": times["anatomy"],
        "report": report,
    }


def _timed(stage_function: Callable[..., Any], stage: str, times: dict[str, int]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        before = time.process_time_ns()
        try:
            return stage_function(*arguments, **options)
        finally:
            times[stage] += time.process_time_ns() - before

    return timed


def print_functions(trace: Path, count: int) -> None:
    """The functions that take most themselves; the profiler makes short ones look longer than they are."""
    from opanatomy.pipeline import summary_of_trace

    profiler = cProfile.Profile()
    profiler.runcall(summary_of_trace, trace)
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(count)


if __name__ == "__main__":
    main()
