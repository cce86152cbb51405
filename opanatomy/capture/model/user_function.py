"""Load a user's own model: `file.py:function` or `package.module:function` that returns (module, inputs)."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.silence import one_line
from opanatomy.errors import ModelError, UsageError
from opanatomy.records.memory import is_out_of_memory
from opanatomy.records.patterns import regex

if TYPE_CHECKING:
    import torch


# Import a user's Python file with the imports that `python FILE` would find, and locate failures of its code.


_FILE: Final = regex(r"(?P<file>.+\.py)(?::(?P<function>.*))?", re.DOTALL)
_NAME: Final = regex(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PACKAGE: Final = str(Path(__file__).parents[2]) + os.sep
#: Modules imported by files, by the folder that they were imported from.
_BROUGHT: Final[dict[str, str]] = {}


def file_and_function(model: str) -> tuple[Path, str] | None:
    """Split `file.py:function`; return `None` if `model` is not a Python file.

    Raises `ModelError` if the file is missing, or the function is not named.
    """
    match = _FILE.fullmatch(model)
    if match is None:
        return None
    path = Path(match["file"]).expanduser()
    # Without a function it may be a Hub id, with one a file of that very name.
    if not path.parent.is_dir() if match["function"] is None else os.path.exists(model):
        return None
    if not path.is_file():
        if not path.parent.is_dir():
            raise ModelError(f"no file {path}, nor a folder {path.parent}")
        near = get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=3)
        instead = f"did you mean {', '.join(str(path.with_name(name)) for name in near)}?" if near else "check the path"
        raise ModelError(f"no file {path} - {instead}")
    if _NAME.fullmatch(match["function"] or "") is None:
        named = f"{match['function']!r} does not name a function" if match["function"] else "it names no function"
        # The example is a function of the file that can be called, as far as known without running it.
        try:
            body = ast.parse(path.read_bytes()).body
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            raise ModelError(f"{model}: {named}, and the file cannot be read ({one_line(error)})") from error
        functions = [part for part in body if isinstance(part, ast.FunctionDef)]
        names = [part.name for part in functions if _required(part.args) <= {"batch"}]
        if not names:
            instead = f"add one that returns (module, inputs), or run it as a script: opanatomy run {path}"
            raise ModelError(f"{model}: {named}, and the file has none without arguments - {instead}")
        raise ModelError(f"{model}: {named} - pass the one that returns (module, inputs), such as {path}:{names[0]}")
    return path, match["function"]


@contextmanager
def imported_file(path: Path) -> Iterator[ModuleType]:
    """Yield the file as a module; its folder, or that of its package, is importable inside the block.

    Raises `ModelError` with the file and line of the user's own code if it cannot be imported.
    """
    file = path.resolve()
    root, name = _root_and_name(file)
    # Forget modules imported by a file of another folder, whose names mean others here.
    for other in [other for other, folder in _BROUGHT.items() if folder != root]:
        sys.modules.pop(other, None)
        del _BROUGHT[other]
    before = set(sys.modules)
    sys.path.insert(0, root)
    importlib.invalidate_caches()
    try:
        yield _imported(file, name, path)
    finally:
        with suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(root)
        for other in set(sys.modules) - before:
            if _lies_in(sys.modules[other], root):
                _BROUGHT[other] = root


def _imported(file: Path, name: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(name) if "." in name else _as_module(file, name)
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        todo = f"try running it: python {path}"
        if isinstance(error, SystemExit):
            todo = 'put the code that only a script should run under `if __name__ == "__main__":`'
        elif isinstance(error, SyntaxError):
            todo = "fix it"
        elif isinstance(error, ModuleNotFoundError):
            todo = "install it, or put it next to that file"
        raise ModelError(f"cannot import {path}: {said_by(error)} - {todo}") from error


def _as_module(file: Path, name: str) -> ModuleType:
    """Return the module of a file under this name, or under a unique one if another module has it."""
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    if loaded is not None or name in sys.stdlib_module_names or _is_installed(name, file):
        name = f"{name}_{hashlib.sha256(os.fsencode(file)).hexdigest()[:8]}"
        if name in sys.modules:
            return sys.modules[name]
    spec = spec_from_file_location(name, file)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _is_installed(name: str, file: Path) -> bool:
    """Return whether this name would import another file without the folder of `file`."""
    asked = sys.path.pop(0)
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return True
    finally:
        sys.path.insert(0, asked)
    if spec is None:
        return False
    return spec.origin is None or not os.path.exists(spec.origin) or not os.path.samefile(spec.origin, file)


def _root_and_name(file: Path) -> tuple[str, str]:
    """Return the folder to import from, and the name there: dotted in a package, for its relative imports."""
    parts, folder = [] if file.stem == "__init__" else [file.stem], file.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(parts) or file.stem
    top = sys.modules.get(parts[0]) if len(parts) > 1 else None
    if top is not None and not _lies_in(top, str(folder)) and _BROUGHT.get(parts[0]) is None:
        raise ModelError(
            f"cannot import {file}: its package {parts[0]} has the same name as one already in use ({top.__file__}) -"
            " rename the folder, or remove its __init__.py"
        )
    return str(folder), name


def _lies_in(module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(os.path.join(folder, ""))


# -------------------------------------------------------------------------------------------------------- owner of code


def said_by(error: BaseException) -> str:
    """Return the message of an error of the user's code, and the file and line of that code."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{type(error).__name__}: {error.msg} ({_shown(error.filename)}:{error.lineno})"
    text = f"SystemExit {error.code}" if isinstance(error, SystemExit) else f"{type(error).__name__}: {one_line(error)}"
    # The last line of the user's own code: not ours, Python's, installed, or made by torch.compile.
    folders = (sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    others = ("<", _PACKAGE, *(os.path.join(folder, "") for folder in folders))
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    own = [frame for frame in frames if "torchinductor" not in frame.filename]
    return f"{text} ({_shown(own[-1].filename)}:{own[-1].lineno})" if own else text


def _shown(name: str) -> str:
    """Return the path relative to the working directory, if that is shorter."""
    try:
        here = os.path.relpath(name)
    except (OSError, ValueError):
        return name
    return here if len(here) < len(name) else name


#: Functions of a module are named up to this many.
_MAX_NAMED_FUNCTIONS: Final = 8
_PATTERN = regex(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def _required(arguments: ast.arguments) -> set[str]:
    """Return the names of the arguments without a default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    first = positional[: len(positional) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {each.arg for each in (*first, *(each for each, default in named if default is None))}


def is_function(model: str) -> bool:
    """Return whether `model` is `package.module:function` or `file.py:function`, and no other file of that name."""
    return file_and_function(model) is not None or (_PATTERN.fullmatch(model) is not None and not Path(model).exists())


def call_function(model: str, batch: int | None = None) -> tuple[torch.nn.Module, dict[str, Any] | tuple[Any, ...]]:
    """Return the module and the inputs from a user's function, called without arguments, or with a `batch`.

    If it takes no `batch`, inputs without values get that many samples in their first dimension; others are an error.
    Inputs may be a mapping (keyword arguments), a tuple or list (positional) or one tensor. A file can import its
    neighbours, and `package.module:function` the working directory, as with `python -m`.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    with _module(model) as (imported, path):
        function = _attribute(imported, path, model)
        takes_batch = batch is not None and "batch" in inspect.signature(function).parameters
        if batch is not None and not takes_batch and not isinstance(torch.empty(0), FakeTensor):
            raise UsageError(
                f"--batch does not apply to {model}, which creates its own inputs - give the function a `batch`"
                " parameter, or leave the option out"
            )
        try:
            made = function(batch=batch) if takes_batch else function()
        except ModelError:
            raise
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error):
                raise
            raise ModelError(f"{model} raised {said_by(error)} - try calling it on its own") from error
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    where = f" ({_shown(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise ModelError(
            f"{model}{where} returned {_describe(made)} - return (module, inputs), with a torch.nn.Module first"
        )
    module, inputs = made
    check_module(model, module)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    elif isinstance(inputs, Mapping):
        inputs = {str(key): value for key, value in inputs.items()}
    elif isinstance(inputs, (tuple, list)):
        inputs = tuple(inputs)
    else:
        why = "return a dict, a tuple or a tensor"
        raise ModelError(f"{model}{where} returned inputs of type {_describe(inputs)} - {why}")
    return module, inputs if batch is None or takes_batch else _with_batch(inputs, batch)


def _with_batch(inputs: Any, batch: int) -> Any:
    """Return inputs without values with that many samples."""
    import torch

    values = list(inputs.values() if isinstance(inputs, dict) else inputs)
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.dim()]
    if not tensors or tensors[0].shape[0] == batch:
        return inputs
    samples = tensors[0].shape[0]
    made = [
        value.new_empty((batch, *value.shape[1:])).requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == samples
        else value
        for value in values
    ]
    return dict(zip(inputs, made, strict=True)) if isinstance(inputs, dict) else tuple(made)


def check_module(name: str, module: torch.nn.Module) -> None:
    """Refuse a module that cannot be moved, counted or watched; `name` is its name in the message."""
    import torch
    from torch.nn.parameter import is_lazy

    if any(isinstance(inner, torch.jit.ScriptModule) for inner in module.modules()):
        raise ModelError(f"{name}: a scripted module does not support hooks - pass the module from before torch.jit")
    for part, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise ModelError(f"{name}: {part} has no shape yet - call the lazy module once first")
        if tensor.is_meta:
            raise ModelError(f"{name}: {part} is on the meta device and has no values - create it on the CPU")


@contextmanager
def _module(model: str) -> Iterator[tuple[ModuleType, str]]:
    """Yield the module that has the function, and the name of the function in it."""
    named = file_and_function(model)
    if named is not None:
        with imported_file(named[0]) as module:
            yield module, named[1]
        return
    module_name, _, path = model.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        imported = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"cannot import {module_name} for {model}: {said_by(error)} - run from its folder or install it"
        ) from error
    yield imported, path


def _attribute(module: ModuleType, path: str, model: str) -> Callable[..., Any]:
    target: Any = module
    for name in path.split("."):
        if not hasattr(target, name):
            near, instead = get_close_matches(name, dir(target), n=3), "check the name after the colon"
            own = [
                key
                for key, value in vars(target).items()
                if inspect.isfunction(value) and value.__module__ == getattr(target, "__name__", None)
            ]
            if near:
                instead = f"did you mean {', '.join(near)}?"
            elif own:
                instead = f"it has {', '.join(own[:_MAX_NAMED_FUNCTIONS])}"
            raise ModelError(f"no {name!r} in {model.rpartition(':')[0]} - {instead}")
        target = getattr(target, name)
    if not callable(target):
        raise ModelError(
            f"{model} is {_describe(target)}, not a function - make it a function that returns (module, inputs)"
        )
    return target  # type: ignore[no-any-return]  # it is callable


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
