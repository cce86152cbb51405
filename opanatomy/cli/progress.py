"""Show progress on stderr: a live line on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from opanatomy.cli.stdout import say
from opanatomy.report.units import duration

if TYPE_CHECKING:
    from rich.text import Text

#: Cells of the bar at most, and of ` 100%  10:00  10:00 left` and the gap before the bar.
_BAR, _FIGURES = 20, 26


class Display(Struct):
    """Progress display of a capture, as a context manager; the time left includes the steps that follow."""

    live: Any = None
    text: str = ""
    begun_ns: int = 0
    expected_ns: int | None = None
    steps_after: int = 0
    share: float = 0.0
    on_terminal: bool = field(default_factory=lambda: _is_terminal())

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """Begin the stage `text`."""
        from opanatomy.io.redact import mask_secrets

        self._finish_line()
        self.text, self.steps_after, self.expected_ns = mask_secrets(text), steps_after, expected_ns
        self.begun_ns, self.share = time.perf_counter_ns(), 0.0
        if self.on_terminal and self.live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=sys.stderr)
            self.live = Live(get_renderable=self.line, console=console, refresh_per_second=4, transient=True)
            self.live.start()

    def advance(self, fraction: float) -> None:
        """Report that `fraction` of the stage is done."""
        self.share = fraction

    def __enter__(self) -> Display:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self._finish_line()
        if self.live is not None:
            self.live.stop()

    def _finish_line(self) -> None:
        if self.text and not self.on_terminal:
            say(f"  {self.text}: {duration(time.perf_counter_ns() - self.begun_ns)}")

    def line(self) -> Text:
        """Return the live line."""
        from rich.text import Text

        elapsed = time.perf_counter_ns() - self.begun_ns
        share = min(elapsed / self.expected_ns, 0.99) if self.expected_ns else self.share
        # The bar gets the space that the stage and the figures after it leave on the line.
        width = 80 if self.live is None else self.live.console.width
        bar = max(min(_BAR, width - len(self.text) - _FIGURES), 0)
        filled = round(share * bar)
        # The time left is that of this stage and the steps after it; it cannot be estimated at once.
        step = self.expected_ns or (elapsed / self.share if self.share > 0.02 else None)
        left = None if step is None else int(max(step - elapsed, 0) + self.steps_after * step)
        line = Text.assemble(
            (f"{self.text} ", "bold"),
            ("━" * filled, "cyan"),
            ("─" * (bar - filled), "bright_black"),
            f" {share:4.0%}",
            no_wrap=True,
            overflow="ellipsis",
        )
        line.append(f"  {_seconds(elapsed)}", "bright_black")
        if left is not None:
            line.append(f"  {_seconds(left)} left", "bright_black")
        return line


def _is_terminal() -> bool:
    """Return whether stderr is a terminal that can rewrite a line in the characters of the bar."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return False
    return (sys.stderr.encoding or "").lower().startswith("utf")


def _seconds(nanoseconds: int) -> str:
    minutes, seconds = divmod(nanoseconds // 10**9, 60)
    return f"{minutes}:{seconds:02d}"
