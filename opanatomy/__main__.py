"""Run the command `opanatomy`; an interrupt is one line from the start, even while Python still imports the rest."""

from __future__ import annotations

import os
import sys

#: `mallopt` of glibc: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD.
_ALLOCATOR_OPTIONS = ((-3, 4 << 20), (-1, 64 << 20), (-2, 4 << 20))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        if argv is None:
            _leave_at_once_on_interrupt()
            if sys.argv[1:2] == ["analyze"]:
                _prepare_for_analysis()
        from opanatomy.cli import main

        return main.main(argv)
    except KeyboardInterrupt:
        _interrupted()
        return 130


def _leave_at_once_on_interrupt() -> None:
    """End the process on an interrupt: whatever is being imported could print, keep or replace an exception."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:  # noqa: SIM105  # contextlib is one import more
            signal.signal(signal.SIGINT, lambda *_: _leave())
        except ValueError:
            pass  # only the main thread may


def _prepare_for_analysis() -> None:
    """Make an analysis fast, before the imports; only for a verb that never imports torch.

    An analysis makes no cycles worth collecting and does no linear algebra. Its allocator keeps freed memory, as the
    next batch of events needs as much; columns, which are larger than a batch, still go back to the system.
    """
    import gc

    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.platform == "linux":
        import ctypes  # numpy imports it too

        try:
            allocator_option = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError):
            return  # musl does not have it
        for option, value in _ALLOCATOR_OPTIONS:
            allocator_option(option, value)


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
