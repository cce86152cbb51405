"""What a trace says besides its events: the keys before and after `traceEvents`."""

from __future__ import annotations

from typing import Final

import msgspec

from opanatomy.trace.decoding import NOT_DECODABLE, mend

#: Text before or after the events larger than this is not looked at.
LONGEST_METADATA: Final = 16 << 20
#: Bytes that decoded metadata may take at most.
_HEAVIEST: Final = 48 << 20


def read_metadata(head: bytes, tail: bytes, warnings: list[str]) -> dict[str, object]:
    """The keys of the text before the events (from its brace on) and after them (to its brace)."""
    metadata: dict[str, object] = {}
    left = _HEAVIEST
    for text in (head.rstrip(b", \t\r\n") + b"}", b"{" + tail.lstrip(b", \t\r\n")):
        keys = _keys(text, warnings)
        for key, raw in keys.items():
            weight = _weight(raw)
            if weight > left:
                warnings.append(f"the trace's metadata {key[:40]} are too large ({len(bytes(raw)) / 1e6:.1f} MB)")
                continue
            left -= weight
            try:
                value = msgspec.json.decode(raw)
                msgspec.json.encode(value)
            except (*NOT_DECODABLE, OverflowError) as error:
                warnings.append(f"the trace's metadata {key[:40]} cannot be read ({error})")
                continue
            metadata[key] = value
    return metadata


def _keys(text: bytes, warnings: list[str]) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(mend(text), type=dict[str, msgspec.Raw])
    except NOT_DECODABLE as error:
        warnings.append(f"the trace's metadata cannot be read ({error})")
        return {}


def _weight(raw: msgspec.Raw) -> int:
    """The bytes that the decoded value takes, at most and roughly."""
    text = bytes(raw)
    return len(text) + 240 * text.count(b"{") + 90 * text.count(b"[") + 60 * text.count(b",")
