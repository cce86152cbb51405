"""A kept summary as a Parquet file: a row a collective call, all else in the file's own metadata.

`pyarrow.parquet.read_table` of it, or of a folder of them, is the table of calls; the metadata under `opanatomy` is
MessagePack: what the summary is of, and its other fields, compressed.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from opanatomy.cluster.packing import kinds_of_fields, packed_fields, unpacked_fields
from opanatomy.records.columns import Categorical
from opanatomy.records.rank_summary import CollectiveCalls, RankSummary

_METADATA: Final = b"opanatomy"
_TABLE: Final = "calls"


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
    """What stands in the metadata; `checksum` is of the table."""

    key: str
    identity: str
    settled: bool
    sha256: str
    names: tuple[str, ...]
    checksum: int
    fields: bytes


def to_parquet(kept: Kept) -> bytes:
    """The file of a summary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    summary = kept.summary
    others = tuple(name for name in kinds_of_fields() if name != _TABLE)
    head = _Head(
        key=kept.key, identity=kept.identity, settled=kept.settled, sha256=kept.sha256,
        names=tuple(sorted(kept.names)), checksum=_checksum(summary.calls),
        fields=zlib.compress(packed_fields(summary, others), 3),
    )  # fmt: skip
    columns = {name: _to_arrow(getattr(summary.calls, name)) for name in CollectiveCalls.__struct_fields__}
    table = pa.table(columns).replace_schema_metadata({_METADATA: msgspec.msgpack.encode(head)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", store_schema=True, write_statistics=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_parquet(data: bytes) -> Kept:
    """The summary in a file; an error of any kind where it is not one, or is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    head = msgspec.msgpack.decode(file.schema_arrow.metadata[_METADATA], type=_Head)
    table = file.read(use_threads=False)
    calls = CollectiveCalls(**{name: _from_arrow(table.column(name)) for name in CollectiveCalls.__struct_fields__})
    if _checksum(calls) != head.checksum:
        raise ValueError("the table is damaged")
    fields = unpacked_fields(zlib.decompress(head.fields))
    return Kept(
        key=head.key, identity=head.identity, settled=head.settled, sha256=head.sha256, names=frozenset(head.names),
        summary=RankSummary(**fields, calls=calls),
    )  # fmt: skip


def _to_arrow(column: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, Categorical):
        codes = pa.array(column.codes.astype(np.int32), mask=column.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(column.values), type=pa.string()))
    return pa.array(column)


def _from_arrow(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        whole = column.combine_chunks()
        chunk = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Categorical(codes, tuple(chunk.dictionary.to_pylist()))
    return column.to_numpy()


def _checksum(calls: CollectiveCalls) -> int:
    """A number that another content of the table hardly has."""
    checksum = 0
    for name in CollectiveCalls.__struct_fields__:
        column = getattr(calls, name)
        values = column.decoded() if isinstance(column, Categorical) else np.ascontiguousarray(column).tobytes()
        checksum = zlib.crc32(values if isinstance(values, bytes) else repr(values).encode(), checksum)
    return checksum
