"""Backward over forward next to theory, and the classes of the paper next to what the paper measured."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.glossary import note
from opanatomy.report.section import Column, Holds, Note, Ratio, Row, Section, Share, phrase
from opanatomy.report.totals import total

#: Percent of FLOPs and of time, Ivanov et al., arXiv 2007.00072, table 1: a BERT-large encoder layer on a V100.
_PAPER: Final = {
    OperatorClass.TENSOR_CONTRACTION: (99.80, 61.0),
    OperatorClass.STATISTICAL_NORMALIZATION: (0.17, 25.5),
    OperatorClass.ELEMENTWISE: (0.03, 13.5),
}
#: A class of less of the time than this has no ratios: they would be of next to nothing.
_LEAST: Final = 0.01
_NO_RATIO: Final = note("ratios", "-")
_PAPER_IS: Final = note("paper", "paper")


def ratios(anatomy: Anatomy) -> Section | None:
    """Backward over forward by class, next to what theory says."""
    whole = sum(row.time_ns for row in anatomy.classes)
    times = {row.operator_class: total(part for part in anatomy.classes if part.operator_class is row.operator_class)
             for row in anatomy.ratios}  # fmt: skip
    with_ratio = [row for row in anatomy.ratios if (row.time, row.flops, row.bytes) != (None, None, None)]
    known = [row for row in with_ratio if times[row.operator_class].time_ns >= _LEAST * whole]
    if not known:
        return None
    columns = (
        Column(header="backward / forward", holds=Holds.NAMES),
        Column(header="time"),
        Column(header="FLOP", expendable=1),
        Column(header="FLOP theory", expendable=3),
        Column(header="bytes", expendable=2),
        Column(header="bytes theory", expendable=4),
    )
    rows = tuple(
        Row(
            cells=(
                row.operator_class,
                *map(Ratio, (row.time, row.flops)),
                Ratio(row.theory_flops) if any(item.theory_flops is not None for item in known) else None,
                Ratio(row.bytes),
                Ratio(row.theory_bytes) if any(item.theory_bytes is not None for item in known) else None,
            ),
            operator_class=row.operator_class,
        )
        for row in known
    )
    left_out = any(None in (row.time, row.bytes, row.flops if row.operator_class in _PAPER else 0) for row in known)
    notes = [Note(text=_NO_RATIO)] if left_out else []
    if len(known) < len(with_ratio):
        notes.append(Note(text=phrase("classes of less than {} of the time are left out", Share(_LEAST, 1, 0))))
    return Section(name="ratios", title="Backward over forward", columns=columns, rows=rows, notes=tuple(notes))


#: What the architectures of transformer encoders are called.
_ENCODERS: Final = ("Bert", "Roberta", "Electra", "Deberta", "Ernie", "Camembert", "MPNet", "FNet", "ViT", "Deit")


def is_encoder(anatomy: Anatomy) -> bool:
    """Whether the model is a transformer encoder, as the paper's is."""
    shape, architecture = anatomy.memory.shape, anatomy.workload.architecture or ""
    if shape is not None:
        return shape.kind == "bert"
    return any(name.lower() in architecture.lower() for name in _ENCODERS)


def paper(anatomy: Anatomy) -> Section | None:
    """The three classes of the paper among themselves, without the optimizer, next to what the paper found.

    `None` where the FLOPs of one of them are those of less than half of its time: they have no shares then.
    """
    members = [row for row in anatomy.classes if row.operator_class in _PAPER and row.phase is not Phase.OPTIMIZER]
    parts = {item: total(row for row in members if row.operator_class is item) for item in _PAPER}
    whole = total(members)
    if not all(part.time_ns and part.flops and part.flops_cover for part in parts.values()):
        return None
    columns = (
        Column(header="the paper's classes", holds=Holds.NAMES),
        Column(header="FLOP"),
        Column(header="FLOP paper", expendable=1),
        Column(header="time"),
        Column(header="time paper", expendable=1),
    )
    rows = tuple(
        Row(
            cells=(
                item,
                Share(part.flops, whole.flops, decimals=2),
                Share(_PAPER[item][0], 100, decimals=2),
                Share(part.time_ns, whole.time_ns),
                Share(_PAPER[item][1], 100),
            ),
            operator_class=item,
        )
        for item, part in parts.items()
    )
    return Section(name="paper", title="The paper's classes", columns=columns, rows=rows, notes=(Note(text=_PAPER_IS),))
