"""Records as the preloaded library writes them."""

from __future__ import annotations

import struct
import zlib

from joblens.capture.records import FIELDS, UNKNOWN


def make_record(kind: str, *texts: str, **fields: int) -> bytes:
    numbers = [fields.get(name, UNKNOWN) for name in FIELDS[kind]]
    body = struct.pack(f"<{len(numbers)}Q", *numbers) + b"".join(text.encode() + b"\0" for text in texts)
    rest = struct.pack("<HcB", 12 + len(body), kind.encode(), len(numbers)) + body
    return b"JLC1" + struct.pack("<I", zlib.adler32(rest)) + rest
