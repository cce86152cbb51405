"""The command `opanatomy`: from the first line on an interrupt is one line, while Python still imports the rest too."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    try:
        if argv is None:
            _leave_at_once_on_interrupt()
        from opanatomy.console import dispatch

        return dispatch.main(argv)
    except KeyboardInterrupt:
        _interrupted()
        return 130


def _leave_at_once_on_interrupt() -> None:
    """An exception would go through whatever is being imported, which may print it, keep it or make another of it."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:  # noqa: SIM105  # contextlib is one import more
            signal.signal(signal.SIGINT, lambda *_: _leave())
        except ValueError:
            pass  # only the main thread may


def _leave() -> None:
    _interrupted()
    os._exit(130)


def _interrupted() -> None:
    try:  # noqa: SIM105
        os.write(2, b"opanatomy: interrupted; nothing was written\n")
    except OSError:
        pass  # nobody reads it


if __name__ == "__main__":
    sys.exit(main())
