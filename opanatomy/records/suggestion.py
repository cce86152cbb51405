"""The techniques that would save memory or time, by prediction."""

from __future__ import annotations

from opanatomy.records.record import Record


class Suggestion(Record, frozen=True, kw_only=True):
    """What a technique is predicted to change of the step, and what to add to the command for it.

    `peak_bytes` is the predicted peak of all allocations and `now_bytes` that of the step as it is, predicted the same
    way; the times are predicted steps over the step as it is: `time_ratio` the most likely, then the range.
    """

    technique: str
    option: str
    peak_bytes: int
    now_bytes: int
    time_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None

    @property
    def saved_bytes(self) -> int:
        """What of the peak would be gone."""
        return self.now_bytes - self.peak_bytes


class Suggestions(Record, frozen=True, kw_only=True):
    """The techniques that would save most, the most first; `not_reached` are names there was no time to look at."""

    best: tuple[Suggestion, ...] = ()
    not_reached: tuple[str, ...] = ()
