"""Variable-length integers (LEB128), as in Protocol Buffers, Avro and Snappy."""

from __future__ import annotations


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
