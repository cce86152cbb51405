"""What a step communicated against what theory says that the ranks' shared weights need."""

from __future__ import annotations

from opanatomy.records.checks import Check, Difference
from opanatomy.records.communication import Communication

_SOURCE = "the weights that the ranks share"


def check_communication(communication: Communication | None) -> tuple[Check, ...]:
    """The bytes of each module's collectives beside those that its weights need; none where nothing is expected."""
    if communication is None or not communication.expected:
        return ()
    known = [row for row in communication.expected if row.measured_bytes is not None]
    differences = tuple(
        Difference(
            operator=row.collective, ours=row.measured_bytes, other=row.expected_bytes,
            evidence=row.module or "the whole model",
        )
        for row in known
        if row.measured_bytes != row.expected_bytes
    )  # fmt: skip
    unknown = len(communication.expected) - len(known)
    return (
        Check(
            quantity="communicated bytes", source=_SOURCE, unit="B", compared=len(known),
            equal=len(known) - len(differences), differences=differences,
            not_checked=f"the trace does not have {unknown} of the messages" if unknown else None,
        ),
    )  # fmt: skip
