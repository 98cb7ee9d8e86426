from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capture.made import make_record
from joblens.capture.records import Damage, describe_damage, parse_records

_ONE = make_record("S", "/bin/true", "/", "", "", "", "true", time=5, pid=7, start=9, parent=1)
_TWO = make_record("E", time=6, pid=7, start=9, parent=1, status=0, user=3)


def test_fields_and_texts_by_name() -> None:
    """Fields have names, unknown ones are left out, and texts keep their order."""
    (record,), damage = parse_records(_ONE)
    assert record.fields == {"time": 5, "pid": 7, "start": 9, "parent": 1}
    assert record.texts == ["/bin/true", "/", "", "", "", "true"]
    assert damage == Damage(0, 0)


def test_kind_of_a_later_version_is_left_out() -> None:
    """A record of an unknown kind is whole, but has no meaning here."""
    rest = _TWO[8:].replace(b"E", b"Q", 1)
    import zlib

    unknown = b"JLC1" + zlib.adler32(rest).to_bytes(4, "little") + rest
    records, damage = parse_records(unknown + _ONE)
    assert [record.kind for record in records] == ["S"]
    assert damage == Damage(0, 0)


@given(st.integers(1, len(_TWO) - 1))
def test_torn_record_is_skipped(size: int) -> None:
    """A record that was cut off loses itself only, and the loss is stated."""
    records, damage = parse_records(_ONE + _TWO[:size] + _ONE)
    assert [record.kind for record in records] == ["S", "S"]
    assert damage == Damage(1, size)
    some = "1 byte" if size == 1 else f"{size} bytes"
    assert describe_damage("n1", damage) == [f"n1: skipped {some} in 1 place: torn records"]


@given(st.integers(0, len(_TWO) - 1), st.integers(1, 255))
def test_changed_byte_is_noticed(place: int, change: int) -> None:
    """No record with a changed byte is taken as it is."""
    damaged = bytearray(_TWO)
    damaged[place] ^= change
    records, _ = parse_records(_ONE + bytes(damaged) + _ONE)
    assert [record.kind for record in records] == ["S", "S"]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_records_are_found_in_anything(before: bytes, after: bytes) -> None:
    """Whatever stands around a record, it is found, and no byte is counted twice."""
    records, damage = parse_records(before + _TWO + after)
    assert "E" in [record.kind for record in records]
    assert damage.bytes == len(before) + len(after)
