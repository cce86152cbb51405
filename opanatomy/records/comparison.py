"""How far two runs are apart, and whether that is more than the noise."""

from __future__ import annotations

from opanatomy.records.techniques import StepFigures, TechniqueRow

#: A prediction of memory that is off by more disagrees; one of time where the measured time is out of its range.
MEMORY_AGREES = 0.02


def figures_of(row: TechniqueRow) -> StepFigures | None:
    """The measured figures, those of the prediction where nothing was measured."""
    return row.measured if row.measured is not None else row.predicted


def within_noise(one: StepFigures, other: StepFigures) -> bool:
    """Whether the ranges of the repetitions overlap."""
    if one.low_ns is None or one.high_ns is None or other.low_ns is None or other.high_ns is None:
        return False
    return one.low_ns <= other.high_ns and other.low_ns <= one.high_ns


def memory_error(row: TechniqueRow) -> float | None:
    """Predicted over measured peak, less one."""
    if row.predicted is None or row.measured is None or not row.measured.peak_bytes:
        return None
    return None if row.predicted.peak_bytes is None else row.predicted.peak_bytes / row.measured.peak_bytes - 1


def time_error(row: TechniqueRow, baseline: TechniqueRow) -> float | None:
    """Predicted over measured change of the time, less one: the machine's drift since the baseline's capture is out."""
    predicted, measured = row.predicted, row.measured
    if predicted is None or measured is None or not measured.step_ns or predicted.step_ns is None:
        return None
    theirs = baseline.measured
    begun = baseline.predicted.step_ns if baseline.predicted is not None else None
    if theirs is None or not theirs.step_ns or not begun:
        return None
    return (predicted.step_ns / begun) / (measured.step_ns / theirs.step_ns) - 1


def time_agrees(row: TechniqueRow, baseline: TechniqueRow) -> bool | None:
    """Whether the measured time, in parts of the baseline's, is within the predicted range."""
    predicted, error = row.predicted, time_error(row, baseline)
    if error is None or predicted is None or predicted.low_ns is None or predicted.high_ns is None:
        return None
    assert predicted.step_ns is not None
    measured = predicted.step_ns / (1 + error)
    return predicted.low_ns <= measured <= predicted.high_ns


def peaks_differ(predicted: int | None, measured: int | None) -> bool:
    """Whether a predicted peak is off by more than 2 % of the measured; not where one is not known."""
    if predicted is None or not measured:
        return False
    return abs(predicted / measured - 1) > MEMORY_AGREES


def memory_agrees(row: TechniqueRow) -> bool | None:
    """Whether the predicted peak is within 2 % of the measured."""
    error = memory_error(row)
    return None if error is None else abs(error) <= MEMORY_AGREES
