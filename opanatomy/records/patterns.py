"""Regular expressions compiled at first use: a run needs half of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, Final, cast

_METHODS: Final = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer", "pattern", "flags")


class _Late:
    """A regular expression that has the methods of the compiled one from the first use on."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)
        compiled = re.compile(*self._arguments)
        self.__dict__.update((method, getattr(compiled, method)) for method in _METHODS)
        return self.__dict__[name]


def regex(expression: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression as `re.compile` does; an error in it shows when it is first used."""
    return cast("re.Pattern[AnyStr]", _Late(expression, flags))
