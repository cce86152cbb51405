"""Parse -> command -> exit code; the one place that turns an error into a line on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from opanatomy.commands.arguments import make_parser
from opanatomy.errors import OpanatomyError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        import_module(f"opanatomy.commands.{arguments.verb}").run(arguments)
        return 0
    except OpanatomyError as error:
        if arguments.debug:
            raise
        print(f"opanatomy: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("opanatomy: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout has gone (`| head`); keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
