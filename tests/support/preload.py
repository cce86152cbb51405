"""What the server of an experiment's processes imports in the tests: all of this project, and of others what a run on
the CPU imports, so that no process has to. The commands that tests run are forked from the same server."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys

import accelerate  # of runs on several ranks
import transformers.models.bert.modeling_bert  # the models that most of these runs build
import transformers.models.gpt2.modeling_gpt2

import opanatomy

__all__ = ["PATH", "accelerate", "opanatomy", "transformers"]

#: As a program of its own has them: the process of the tests has folders of theirs.
PATH = tuple(sys.path)

for _module in pkgutil.walk_packages(opanatomy.__path__, "opanatomy."):
    importlib.import_module(_module.name)
# What was imported is not looked at by each collection of each child, which would copy its pages too.
gc.freeze()
