"""What the name of a kernel, memcpy or memset says, looked at once."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from opanatomy.classification.compute_types import compute_type
from opanatomy.classification.element_types import element_type
from opanatomy.classification.kernels import classify_kernel
from opanatomy.classification.tensor_cores import uses_tensor_cores
from opanatomy.records.signature import Classification

#: Copies between host and device as CUPTI, roctracer and Intel's PTI name them (M is plain memory on the host, H what
#: is pinned there).
_HOST_LINK = re.compile(
    r"^Memcpy (?:HtoD|DtoH|HostToDevice|DeviceToHost|[MH]2D|D2[MH])|^(?:Copy)?(?:HostToDevice|DeviceToHost)"
)


class KernelName(Struct, frozen=True, kw_only=True):
    """What a name says; `None` is what it does not."""

    classification: Classification
    #: Whether it uses tensor cores.
    tensor_cores: bool | None
    #: What it computes float32 operands in: one of `COMPUTE_TYPES`.
    compute_type: str | None
    #: The type of the elements of the tensor lists that it works on.
    element_type: str | None
    #: Whether it copies between host and device.
    crosses_host_link: bool


@lru_cache(maxsize=65536)
def read_kernel_name(name: str) -> KernelName:
    """What the name of a device event says."""
    return KernelName(
        classification=classify_kernel(name),
        tensor_cores=uses_tensor_cores(name),
        compute_type=compute_type(name),
        element_type=element_type(name),
        crosses_host_link=_HOST_LINK.match(name) is not None,
    )
