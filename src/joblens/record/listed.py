"""The few fields of a record that a listing shows: all others are skipped, and not checked."""

# Without postponed annotations: msgspec would compile each of them once more.

import msgspec
from msgspec import Meta, field

from joblens.record.fields import Amount, Annotated, Moment, Whole
from joblens.record.report import VERSION


class ListedJob(msgspec.Struct, kw_only=True, gc=False):
    """Part of `report.Job`."""

    id: str
    cluster: str
    name: str
    user: str
    node: str | None = None
    source: str | None = None
    tags: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    nodes: list[str] | None = None
    account: str | None = None
    partition: str | None = None
    array_job: str | None = None
    array_task: str | None = None
    het_job: str | None = None
    het_offset: str | None = None
    start: Moment
    end: Moment | None = None
    state: str | None = None
    exit_code: Whole | None = None


class ListedAsked(msgspec.Struct, gc=False):
    """Part of `report.Asked`."""

    cores: Amount | None = None


class ListedUsed(msgspec.Struct, gc=False):
    """Part of `report.Used`."""

    duration_seconds: Amount | None = None
    cpu_seconds: Amount | None = None
    memory_peak_bytes: Amount | None = None
    processes: Amount | None = None


class ListedRecord(msgspec.Struct, kw_only=True, gc=False):
    """Part of `report.Head`."""

    version: int = VERSION
    written: Whole = 0
    job: ListedJob
    asked: ListedAsked = field(default_factory=ListedAsked)
    used: ListedUsed = field(default_factory=ListedUsed)
    verdict: str = ""


_Known = Annotated[int, Meta(le=VERSION)]


class _Front(ListedRecord, kw_only=True, gc=False):
    """The beginning of a record: all of these must be there, for what is missing may come later."""

    version: _Known
    written: Whole
    asked: ListedAsked
    used: ListedUsed
    verdict: str


parse_listed = msgspec.json.Decoder(ListedRecord).decode
parse_front = msgspec.json.Decoder(_Front).decode

_Text = str | None
_Size = Amount | None
_Pairs = dict[str, str] | None
_Place = Annotated[int, Meta(ge=0, le=2**63 - 1)]
# As joblens.store.catalog.heads makes it.
_Head = tuple[
    str, str, Moment, Moment | None, str, str, _Text, _Text, _Text, Whole | None,
    _Size, _Size, _Size, _Size, _Size, str, str, _Text, _Text, _Text,
    Whole, _Place, _Pairs, _Pairs,
]  # fmt: skip
# Version, size of the file of records, and its heads.
decode_heads = msgspec.msgpack.Decoder(tuple[int, int, list[_Head]]).decode
