"""Silence the output of transformers and huggingface_hub while a model is read and built."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Run the body without log lines, progress bars and warnings of the model libraries."""
    import huggingface_hub.utils
    import transformers.utils

    hub: Any = huggingface_hub.utils
    logging: Any = transformers.utils.logging
    verbosity, hub_verbosity = logging.get_verbosity(), hub.logging.get_verbosity()
    bars, hub_bars = logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    logging.set_verbosity_error()
    hub.logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        hub.logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            hub.enable_progress_bars()


def one_line(error: BaseException, length: int = 240) -> str:
    """Return the message of a library's exception, on one line of at most `length` characters."""
    text = " ".join(str(error).split())
    if " " not in text:  # a KeyError has only the key
        text = f"{type(error).__name__} {text}".strip()
    return text if len(text) <= length else text[: length - 3] + "..."


def first_line(error: BaseException, length: int, *, silent: str | None = None) -> str:
    """Return the first `length` characters of an error's first line; if empty `silent`, else its kind."""
    return (str(error).strip() or silent or type(error).__name__).splitlines()[0][:length]
