"""A kept summary as a Parquet file: a row a collective call, and the whole summary in the file's own metadata.

`pyarrow.parquet.read_table` of it, or of a folder of them, is the table of calls, for other tools. This program reads
the metadata alone, which takes a fraction of the time: under `opanatomy` a checksum, and as MessagePack what the
summary is of and the summary, compressed.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from opanatomy.cluster.packing import packed_summary, unpacked_summary
from opanatomy.records.columns import Categorical
from opanatomy.records.rank_summary import CollectiveCalls, RankSummary

_METADATA: Final = b"opanatomy"
_CHECKSUM: Final = struct.Struct("<L")


class Kept(Struct, frozen=True, kw_only=True):
    """A summary, and what tells whether it still holds: by what it was made (`key`), what the trace was like
    (`identity`, which tells by itself where it is `settled`), and the trace's SHA-256."""

    key: str
    identity: str
    settled: bool
    sha256: str
    #: The hosts and users that the trace's metadata name.
    names: frozenset[str]
    summary: RankSummary


class _Head(Struct, frozen=True, kw_only=True):
    """The same with the summary packed."""

    key: str
    identity: str
    settled: bool
    sha256: str
    names: tuple[str, ...]
    summary: bytes


def to_parquet(kept: Kept) -> bytes:
    """The file of a summary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    head = msgspec.msgpack.encode(
        _Head(
            key=kept.key, identity=kept.identity, settled=kept.settled, sha256=kept.sha256,
            names=tuple(sorted(kept.names)), summary=packed_summary(kept.summary),
        )
    )  # fmt: skip
    calls = kept.summary.calls
    columns = {name: _to_arrow(getattr(calls, name)) for name in CollectiveCalls.__struct_fields__}
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    # A stored schema would have the metadata a second time.
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False, write_statistics=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_METADATA: _CHECKSUM.pack(zlib.crc32(head)) + head})
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_parquet(data: bytes) -> Kept:
    """The summary in a file; an error of any kind where it is not one, or is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed: bytes = pq.read_metadata(pa.BufferReader(data)).metadata[_METADATA]
    checksum, body = packed[: _CHECKSUM.size], packed[_CHECKSUM.size :]
    if _CHECKSUM.unpack(checksum)[0] != zlib.crc32(body):
        raise ValueError("the summary is damaged")
    head = msgspec.msgpack.decode(body, type=_Head)
    return Kept(
        key=head.key, identity=head.identity, settled=head.settled, sha256=head.sha256, names=frozenset(head.names),
        summary=unpacked_summary(head.summary),
    )  # fmt: skip


def _to_arrow(column: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, Categorical):
        codes = pa.array(column.codes.astype(np.int32), mask=column.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(column.values), type=pa.string()))
    return pa.array(column)
