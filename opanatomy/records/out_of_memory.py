"""Whether an error says that memory ran out, and how much was requested: in the words of each library.

The one table of these wordings: for a step that breaks, for the first use of a device, and for a process that has no
memory left to load a library with.
"""

from __future__ import annotations

import errno
import re
from typing import Final

#: What says that memory ran out. Sources: `c10/cuda/CUDACachingAllocator.cpp`, its XPU and MPS likes and NPU's plug-in
#: ("... out of memory. Tried to allocate ..."); the CUDA and HIP runtimes' own "out of memory", in Triton's and NCCL's
#: messages too; `c10/core/impl/alloc_cpu.cpp` ("can't allocate memory", on Windows "not enough memory"); the C library
#: ("Cannot allocate memory") and C++; `aten/src/ATen/cuda/Exceptions.h`, which gives the status of cuBLAS, cuSOLVER and
#: cuDNN by its name and that of cuSPARSE by its text; cuDNN 9's own two; hipBLAS, rocBLAS, MIOpen and cuFFT by name;
#: NCCL's `alloc.h`; Level Zero and the unified runtime below XPU; the device driver of AMD; numpy and TensorFlow's
#: allocators.
_SAYS: Final = re.compile(
    r"out of memory\b|outofmemory|out_of_memory|not enough memory|bad_alloc|\bcan(?:'|no)t allocate memory"
    r"|(?:cublas|cudnn|cusolver|cusparse|cutensor|cudss|curand|hipblas|hipblaslt|hipsolver|hipsparse|hiprand|hipdnn|rocblas|rocsparse)"
    r"_status_(?:alloc|allocation)_failed"
    r"|cudnn_status_internal_error_(?:host|device)_allocation_failed|(?:cufft|hipfft)_alloc_failed"
    r"|(?:rocblas|rocsparse)_status_memory_error|miopenstatusallocfailed|memory not available to allocate buffer"
    r"|\b(?:cublas|cusparse|cuda|hip|hipsparse)\b.*\bresource allocation failed"
    r"|failed to (?:cuda|hip) (?:host )?[cm]alloc|error_out_of_(?:device|host)_memory"
    r"|unable to allocate [\d.]+ [kmgtp]?i?b for an array",
    re.IGNORECASE,
)
#: What has such words and is something else: the loader's block for thread-local variables of libraries (glibc), the
#: on-chip memory of one kernel (Triton: "out of resource: shared memory", older: "out of memory: shared memory").
_IS_NOT: Final = re.compile(
    r"static TLS block|shared memory, required|out of (?:memory|resource)s?: shared memory", re.I
)
#: Errors of a program, whatever their text: what was given cannot be, however much memory there is.
_OF_PROGRAMS: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NameError,
    AssertionError,
    SyntaxError,
    NotImplementedError,
)

#: What native code says where a process cannot load a library or start a thread: the thread pools of Python and
#: C++, the loader, and allocators that only say that they allocate.
_STARVED: Final = ("can't start new thread", "failed to map segment", "allocat", "out of memory")

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
#: "you tried to allocate 400000000 bytes" on the CPU, "Tried to allocate 2.00 GiB" on CUDA; Apple's allocator wrote MB
#: for 2^20 B until torch 2.6. "Tried to allocate more than 1EB memory" gives no number.
_REQUESTS: Final = (
    re.compile(r"tried to allocate ([\d.]+) ([KMGTP]?)(?:i?B|bytes)\b", re.IGNORECASE),
    re.compile(r"unable to allocate ([\d.]+) ([KMGTP]?)i?B for an array", re.IGNORECASE),
    re.compile(r"memory not available to allocate buffer: (\d+)()", re.IGNORECASE),
    re.compile(r"failed to (?:cuda|hip) (?:host )?[cm]alloc (?:async )?(\d+)() bytes", re.IGNORECASE),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error`, or what it was explicitly raised from, says that memory ran out, on the host or on a device."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        if _says_so(now):
            return True
        seen.add(id(now))
        now = now.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    if isinstance(error, _OF_PROGRAMS):
        return False
    text = str(error)
    return _SAYS.search(text) is not None and _IS_NOT.search(text) is None


def is_starved(error: BaseException) -> bool:
    """Whether a process has no memory left, as a library that is loaded then, or starts a thread, says it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, (RuntimeError, ImportError)) and any(words in str(error).lower() for words in _STARVED)


def requested_bytes(message: str) -> int | None:
    """The bytes of the request that failed, as the message says them (CUDA's allocator rounds to two digits)."""
    for pattern in _REQUESTS:
        if match := pattern.search(message):
            return round(float(match[1]) * _UNITS[match[2].upper()])
    return None
