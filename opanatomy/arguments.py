"""Check the arguments of the Python entry points: paths, switches, modules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from opanatomy.errors import UsageError
from opanatomy.io.files import check_no_address, folder_of_traces

if TYPE_CHECKING:
    pass


Name: TypeAlias = "str | os.PathLike[str]"


def check_module(function: str, module: object) -> None:
    """Raise `UsageError` for anything but a module, `ModelError` for one that cannot be watched."""
    import torch

    from opanatomy.capture.model.user_function import check_module

    if not isinstance(module, torch.nn.Module):
        made = " - create an instance first" if isinstance(module, type) and issubclass(module, torch.nn.Module) else ""
        raise UsageError(f"{function}: the module is {kind_of(module)}{made or ' - pass a torch.nn.Module'}")
    check_module(type(module).__name__, module)


def trace_target(function: str, trace: Name | None) -> Path | None:
    """Return the file for the trace, checked before the step is run; `None` if none is kept."""
    if (folder := folder_of_traces()) is not None:
        return folder / "step.trace.json.gz"
    if trace is None:
        return None
    path = path_of(f"{function}: trace", trace)
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{function}: trace {path}: the name must end in .json or .json.gz")
    check_no_address(f"{function}: trace", os.fspath(trace))
    return path


def check_switch(name: str, value: object) -> None:
    """Raise `UsageError` for a value that is neither True nor False."""
    if not (isinstance(value, int) and value in (0, 1)):
        raise UsageError(f"{name}={value!r}: must be True or False")


def path_of(what: str, name: object) -> Path:
    """Return the path for a name; raise `UsageError` that begins with `what` for anything else."""
    if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
        raise UsageError(f"{what}: a path must be a string, but this is {kind_of(name)} - pass a file name")
    if not os.fspath(name):
        raise UsageError(f"{what}: the name is empty - pass a file name")
    if "\0" in os.fspath(name):
        raise UsageError(
            f"{what}: {os.fspath(name)!r} contains a null byte, which is not allowed in a file name - pass another name"
        )
    return Path(name)


def kind_of(value: object) -> str:
    """Name the type of a value in a word or two."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"
