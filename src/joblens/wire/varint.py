"""Numbers of any size in as few bytes as they need, as Protocol Buffers, Avro and Snappy write them."""

from __future__ import annotations


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
