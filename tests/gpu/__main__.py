"""`python -m tests.gpu`: the checks on this device; exit code 1 where a figure does not hold."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from tests.gpu.checks import all_figures


def main() -> int:
    """Run all checks, print a line each; renew what the tests keep where asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep traces and reports there")
    parser.add_argument("--renew", type=Path, metavar="FOLDER", help="write what the tests keep of devices there")
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(f"gpu-check: this torch ({torch.__version__}) sees no GPU - run it where there is one", file=sys.stderr)
        return 1
    device = torch.cuda.get_device_properties(0).name
    print(f"{device}, torch {torch.__version__}")
    failed = total = 0
    with nullcontext(arguments.out) if arguments.out else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for command, figure in all_figures(folder, device):
            total += 1
            failed += not figure.holds
            mark = "ok  " if figure.holds else "FAIL"
            print(f"{mark} {figure.name}: {figure.found} (wanted: {figure.wanted}) [{command}]", flush=True)
        if arguments.renew:
            from tests.gpu.recordings import renew

            for line in renew(folder, arguments.renew):
                print(line, flush=True)
    print(f"{total - failed} of {total} figures hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
