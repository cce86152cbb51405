"""How an operator class looks in every format: its name, a short one for narrow places, its colour."""

from __future__ import annotations

from typing import Final

from opanatomy.records.taxonomy import OperatorClass

LABEL: Final = {
    OperatorClass.TENSOR_CONTRACTION: "tensor contraction",
    OperatorClass.STATISTICAL_NORMALIZATION: "statistical normalization",
    OperatorClass.ELEMENTWISE: "element-wise",
    OperatorClass.DATA_MOVEMENT: "data movement",
    OperatorClass.COMMUNICATION: "communication",
    OperatorClass.OTHER: "other",
    OperatorClass.UNKNOWN: "unknown",
}

SHORT_LABEL: Final = LABEL | {
    OperatorClass.TENSOR_CONTRACTION: "contraction",
    OperatorClass.STATISTICAL_NORMALIZATION: "normalization",
}

#: The palette of Okabe and Ito, which colour-blind readers can distinguish; the warning colour is for what is unknown.
COLOUR: Final = {
    OperatorClass.TENSOR_CONTRACTION: "#0072b2",
    OperatorClass.STATISTICAL_NORMALIZATION: "#e69f00",
    OperatorClass.ELEMENTWISE: "#009e73",
    OperatorClass.DATA_MOVEMENT: "#56b4e9",
    OperatorClass.COMMUNICATION: "#cc79a7",
    OperatorClass.OTHER: "#888888",
    OperatorClass.UNKNOWN: "#d55e00",
}
