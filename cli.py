"""`python cli.py ...` from a checkout, without installing."""

import sys

from opanatomy.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
