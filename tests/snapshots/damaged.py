"""`python -m tests.snapshots.damaged SEED COUNT`: read and analyze damaged snapshots under a limit of memory.

Half of them have other bytes, half other values in a whole pickle. Prints what became of each, a line each.
"""

from __future__ import annotations

import gzip
import pickle
import random
import resource
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import msgspec

from opanatomy.errors import OpanatomyError
from opanatomy.memory.snapshots import memory_of_snapshot
from opanatomy.trace import snapshot as reader

HERE = Path(__file__).parent
LIMIT = 3 << 30
WRONG: tuple[Any, ...] = (-1, 0, 1, 1 << 40, 1 << 70, 3.5, "", "x", None, [], {}, True, b"x", [[]], (0,), "alloc")


def other_bytes(whole: bytes, rng: random.Random) -> bytes:
    """The file with some bytes changed, left out or put in, or cut off."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        index = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[index : index + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[index : index + rng.randrange(1, 9)]
            case 2:
                data[index:index] = rng.randbytes(rng.randrange(1, 9))
            case _ if rng.random() < 0.2:
                del data[index:]
    return bytes(data)


def other_values(whole: bytes, rng: random.Random) -> bytes:
    """The snapshot with some values of another kind or size, and some keys gone."""
    snapshot = pickle.loads(whole)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at: Any = snapshot
        while isinstance(at, (dict, list)) and at:
            key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
            below = at[key]
            if not isinstance(below, (dict, list)) or not below or rng.random() < 0.1:
                if rng.random() < 0.2:
                    del at[key]
                else:
                    at[key] = rng.choice(WRONG)
                break
            at = below
    return pickle.dumps(snapshot)


def main(seed: int, count: int) -> None:
    """Read them all in this process, which never asks for more memory than the limit."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    reader._limit_memory = lambda _: None
    reader._TELLS = False
    sources = [gzip.decompress(path.read_bytes()) for path in sorted(HERE.glob("*.gz")) if path.stat().st_size < 40_000]
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.pickle"
        for number in range(count):
            change = other_bytes if number % 2 else other_values
            path.write_bytes(change(rng.choice(sources), rng))
            print(outcome(path), flush=True)


def outcome(path: Path) -> str:
    """What becomes of a file."""
    sent = msgspec.msgpack.decode(reader.sent_of(path), type=reader.Sent)
    if sent.error is not None or sent.snapshot is None:
        return f"refused: {sent.error}"
    try:
        memory_of_snapshot([("damaged", reader.received(sent.snapshot))], str, str)
    except OpanatomyError as error:
        return f"refused: {error}"
    except Exception:
        return "RAISED " + traceback.format_exc().replace("\n", " | ")
    return "read"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
