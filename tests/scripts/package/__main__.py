"""Run the training of the package."""

import sys

from .training import train

train(float(sys.argv[1]))
print(__name__, __package__, len(sys.argv))
