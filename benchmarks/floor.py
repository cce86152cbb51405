"""The floor of reading a trace: decompress the file and parse all of its JSON, garbage collector off.

    python benchmarks/floor.py TRACE

prints as JSON what the two calls took.
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import orjson

    loads: Callable[[bytes], Any] = orjson.loads
    PARSER = "orjson"
except ImportError:
    loads = json.loads
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
                **took,
                "decompress_ns": unpacked - cpu,
                "parser": PARSER,
                "text_bytes": len(text),
                "events": len(events),
            }
        )
    )


if __name__ == "__main__":
    main()
