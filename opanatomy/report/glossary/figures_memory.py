"""Figures of memory worked: the components next to the peak, theory next to what was measured."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.section import Bytes, Change, Count, Phrase, Share, joined, phrase


def component(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """One component: measured, at the peak, by theory."""
    memory = anatomy.memory
    for part in memory.components:
        if part.component != name:
            continue
        if part.measured_bytes is not None:
            yield phrase("measured {} B = {}", Count(part.measured_bytes), Bytes(part.measured_bytes))
        if part.at_peak_bytes is not None and memory.peak_bytes:
            yield phrase("at the peak {} B of {} B = {}", Count(part.at_peak_bytes), Count(memory.peak_bytes),
                         Share(part.at_peak_bytes, memory.peak_bytes))  # fmt: skip
        if part.theory_bytes is not None:
            yield _theory(part.theory_bytes, part.measured_bytes, part.formula)
            yield _letters(anatomy, part.formula)
    for item in memory.inferences:
        if item.component == name:
            yield phrase("{} in {}: {}", Bytes(item.bytes), Count(item.blocks, "block"), item.rule)


def _theory(theory: int, measured: int | None, formula: str | None) -> Phrase:
    made = f"{formula} = " if formula else ""
    off = phrase(", measured {}", Change(measured, theory)) if measured is not None else ""
    return phrase("theory {}{} B{}", made, Count(theory), off)


def _letters(anatomy: Anatomy, formula: str | None) -> Phrase | None:
    """The numbers behind the words and letters of a formula."""
    workload, shape = anatomy.workload, anatomy.memory.shape
    if formula is None:
        return None
    known: list[tuple[str, int | None]] = []
    if "parameters" in formula:
        known += [("parameters", workload.parameters), ("trainable parameters", workload.trainable_parameters)]
    elif shape is not None:
        known += [("b", workload.micro_batch), ("s", workload.sequence_length), ("L", shape.layers),
                  ("h", shape.hidden), ("a", shape.heads), ("i", shape.intermediate),
                  ("V", shape.vocabulary)]  # fmt: skip
    return joined(phrase("{} {}", name, Count(number)) for name, number in known if number is not None)


def theory(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Each component that theory has, next to what was measured."""
    for part in anatomy.memory.components:
        if part.theory_bytes is not None:
            words = part.component.replace("_", " ")
            yield phrase("{}: {}", words, _theory(part.theory_bytes, part.measured_bytes, part.formula))
            yield _letters(anatomy, part.formula)


def off(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What was measured of each component less its theory, of theory."""
    for part in anatomy.memory.components:
        if part.theory_bytes and part.measured_bytes is not None:
            yield phrase("{}: ({} B - {} B) / {} B = {}", part.component.replace("_", " "), Count(part.measured_bytes),
                         Count(part.theory_bytes), Count(part.theory_bytes),
                         Change(part.measured_bytes, part.theory_bytes))  # fmt: skip


def peak(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The peak, and the components that sum to it where they do."""
    memory = anatomy.memory
    if memory.peak_bytes is None:
        return
    yield phrase(
        "{} B = {}, by {}", Count(memory.peak_bytes), Bytes(memory.peak_bytes), memory.measured_by or "the trace"
    )
    for sizes in ([(part.component, part.at_peak_bytes) for part in memory.components],
                  [(part.component, part.measured_bytes) for part in memory.components]):  # fmt: skip
        known = [(name, size) for name, size in sizes if size is not None]
        if known and sum(size for _, size in known) == memory.peak_bytes:
            parts = joined(
                (phrase("{} {} B", name.replace("_", " "), Count(size)) for name, size in known if size), " + "
            )
            yield phrase("{} = {} B", parts or "", Count(memory.peak_bytes))
            return


def terms(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The terms of the closed formula of the activations."""
    for item in anatomy.memory.terms:
        yield phrase("{}: {} = {} B", item.term, item.formula, Count(item.bytes))
    if anatomy.memory.terms:
        yield _letters(anatomy, anatomy.memory.terms[0].formula)
        yield phrase("sum: {} B", Count(sum(item.bytes for item in anatomy.memory.terms)))
