"""The floor of reading a trace: decompress the file, parse all of its JSON, garbage collector off; prints what it took.

    python benchmarks/floor.py TRACE
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
import time
from pathlib import Path

try:
    from orjson import loads

    PARSER = "orjson"
except ImportError:
    from json import loads

    PARSER = "json (orjson is not installed)"


def main() -> None:
    gc.disable()
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    raw = Path(sys.argv[1]).read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    unpacked = time.process_time_ns()
    parsed = loads(text)
    took = {"wall_ns": time.perf_counter_ns() - wall, "cpu_ns": time.process_time_ns() - cpu}
    events = parsed["traceEvents"] if isinstance(parsed, dict) else parsed
    print(
        json.dumps(
            {
                **took, "decompress_ns": unpacked - cpu, "parser": PARSER, "text_bytes": len(text),
                "events": len(events),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
