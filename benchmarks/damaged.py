"""Whether damaged text takes longer than intact text: seconds a megabyte, a plain trace's, and growth with the size.

python benchmarks/damaged.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from opanatomy.errors import TraceError  # noqa: E402
from opanatomy.pipeline import analyze_trace  # noqa: E402
from opanatomy.trace.salvage import (  # noqa: E402
    LONGEST_EVENT,
    EventDecoder,
    salvage,
)
from tests.handmade import HandMade  # noqa: E402
from tests.test_fuzz import HEAD, MEGABYTE, PIECES  # noqa: E402

#: Where each entry that does not close might be looked for to the end of the text.
OPENINGS = (b'{"a":[{},', b'{"x" [{},')


def plain_megabyte() -> bytes:
    made = HandMade()
    for number in range(MEGABYTE // 460):
        made.host("aten::mm", 10 * number, 8, shapes=[[8, 4], [4, 2]], types=["float", "float"])
        made.launch(10 * number + 1, number + 1)
        made.kernel("ampere_sgemm_128x64_nn", 10 * number + 5, 3, number + 1)
    return made.text().encode()


def seconds_of(act: Callable[[], object]) -> float:
    """The least of three."""
    taken = []
    for _ in range(3):
        begin = time.process_time()
        with suppress(TraceError):
            act()
        taken.append(time.process_time() - begin)
    return min(taken)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "input.json")
        path.write_bytes(plain_megabyte())
        plain = seconds_of(lambda: analyze_trace(path))
        print(f"a megabyte of a plain trace: {plain:.3f} s; of pieces (20 times that is too long):")
        for piece in PIECES:
            path.write_bytes(HEAD + piece * (MEGABYTE // len(piece)))
            print(f"  {seconds_of(lambda: analyze_trace(path)) / plain:6.1f} x  {piece[:40]!r}")
    print("four times the text that never closes takes (16 is quadratic):")
    for opening in OPENINGS:
        few, many = (
            seconds_of(lambda text=opening * count + b"}]" * count: salvage(text, EventDecoder(), LONGEST_EVENT))
            for count in (MEGABYTE // 16 // len(opening), MEGABYTE // 4 // len(opening))
        )
        print(f"  {many / few:6.1f} x  {opening!r}")


if __name__ == "__main__":
    main()
