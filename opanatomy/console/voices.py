"""Which of several ranks says what went wrong, and when."""

from __future__ import annotations

import re
import signal
import time
from typing import Final

from opanatomy.launched import launched

#: A rank that fails as the first does is ended by the launcher before it says so too; one that lost another by a
#: failure of that waits for what it says.
_AFTER_THE_FIRST_SECONDS: Final = 2.0
_AFTER_THE_LOST_SECONDS: Final = 10.0
#: How gloo and NCCL say that another rank is gone.
_LOST: Final = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote process exited|connection refused|connectfullmesh|pair closure",
    re.IGNORECASE,
)


def is_silent(number: int | None) -> bool:
    """Whether nothing is to be said of a signal: where its launcher sent it, or the first rank says it."""
    place = launched()
    return place is not None and (not place.is_first or number != signal.SIGINT)


def attributed(message: str) -> str | None:
    """The message of this rank, when it is its turn; `None` where the launcher ended it meanwhile."""
    place = launched()
    if place is None:
        return message
    lost = _LOST.search(message)
    try:
        time.sleep(_AFTER_THE_LOST_SECONDS if lost else 0 if place.is_first else _AFTER_THE_FIRST_SECONDS)
    except KeyboardInterrupt:
        return None
    return message if place.is_first else f"rank {place.rank}: {message}"
