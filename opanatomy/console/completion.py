"""What a shell completes: commands, options, names that an option takes, built-in models, files; written by shtab."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any, Final

from opanatomy.errors import OpanatomyError
from opanatomy.option_values import Option

#: What follows an option, or has none, by how the help calls it.
_FILES: Final = ("FILE", "TRACE", "REPORT", "SIDE")
_FOLDERS: Final = ("DIR",)
_MODEL: Final = "MODEL"
_TECHNIQUE: Final = "TECHNIQUE"
_MODELS: Final = "_opanatomy_models"


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that a shell reads once, at its start; `OpanatomyError` without shtab, or with one too old."""
    try:
        import shtab
    except ImportError as error:
        raise OpanatomyError(
            f"--print-completion {shell} needs shtab, which is not installed - pip install shtab"
        ) from error
    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise OpanatomyError(f"--print-completion {shell}: this shtab knows {known} only - pip install --upgrade shtab")
    _describe(parser)
    for action in _actions(parser):
        _prepare(action, {"files": shtab.FILE, "folders": shtab.DIRECTORY})
    return str(shtab.complete(parser, shell, preamble=_preamble(shell))).rstrip("\n") + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from command._actions


def _describe(parser: argparse.ArgumentParser) -> None:
    """A shell shows a line for each command: its summary."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._get_subactions():
                action.choices[choice.dest].description = choice.help


def _prepare(action: argparse.Action, of_kind: dict[str, Any]) -> None:
    """Say what completes an argument, where that is known; it is not parsed with any more."""
    option: Option | None = getattr(action, "option", None)
    names = str(action.metavar or "").split(":")[0]
    if names == _MODEL:
        vars(action)["complete"] = _of_models(of_kind["files"])
    elif names in _FILES:
        vars(action)["complete"] = of_kind["files"]
    elif names in _FOLDERS:
        vars(action)["complete"] = of_kind["folders"]
    elif option is not None:
        action.choices = _values(option) or action.choices


def _values(option: Option) -> tuple[str, ...]:
    """The names that an option takes."""
    if option.name == "format" and not option.choices:
        from opanatomy.report.formats import format_names

        return format_names()
    if option.metavar == _TECHNIQUE:
        from opanatomy.techniques.entries import TECHNIQUE

        return tuple(TECHNIQUE)
    return tuple(choice.name for choice in option.choices)


def _of_models(files: dict[str, Any]) -> dict[str, Any]:
    """Built-in models and files; only files where a shell takes no more than one kind."""
    return {**files, "bash": _MODELS, "zsh": _MODELS, "fish": f"({_MODELS})"}


def _preamble(shell: str) -> str:
    """The function that completes a model, in the language of the shell."""
    from opanatomy.capture.model.catalog import catalog_names

    names = catalog_names()
    words = " ".join(map(shlex.quote, (*names, *(name.split("/")[-1] for name in names))))
    return {
        "bash": f'{_MODELS}() {{\n  compgen -W "{words}" -- "$1"\n  compgen -f -- "$1"\n}}\n',
        "zsh": f"{_MODELS}() {{\n  local -a models\n  models=({words})\n  compadd -a models\n  _files\n}}\n",
        "fish": f"function {_MODELS}\n  printf '%s\\n' {words}\n  __fish_complete_path (commandline -ct)\nend\n",
    }.get(shell, "")
