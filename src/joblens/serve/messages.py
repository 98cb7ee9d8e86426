"""What the service is asked and what it answers, as types: requests are checked against them, and the
OpenAPI description is generated from them."""

# Without postponed annotations: msgspec would compile each of them once more.

from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from joblens.record.ends import EndedProcess, EndedThread
from joblens.record.fields import about
from joblens.record.model import ReferenceModel
from joblens.record.report import ProcessUse
from joblens.serve.tokens import LONGEST_NAME, Token
from joblens.store.catalog.listing import SORTS, JobRow
from joblens.store.end_groups import GroupUse

MOST_JOBS, MOST_POINTS, MOST_TAGS = 1000, 10_000, 20
Text = Annotated[str, Meta(max_length=200)]
Time = Annotated[
    str, Meta(max_length=40, description="seconds since 1970, `2026-11-15`, `2026-11-15T13:02`, or `7d` ago")
]
_MOST_CODE = 2**31  # of an exit code
JobId = Annotated[str, Meta(min_length=1, max_length=200, description="id, `ID@CLUSTER`, or `last`")]


# Requests: the fields are the parameters of the query


class NoQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """No parameters."""


class JobsQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The filters of `joblens jobs`."""

    user: Annotated[Text, about("of this user")] | None = None
    name: Annotated[Text, about("of such a name, with * and ?")] | None = None
    state: Annotated[Text, about("in Slurm's word, such as FAILED")] | None = None
    since: Time | None = None
    until: Time | None = None
    tag: Annotated[list[Text], Meta(max_length=MOST_TAGS, description="K:V; can be repeated")] = []
    annotation: Annotated[list[Text], Meta(max_length=MOST_TAGS, description="K:V; can be repeated")] = []
    sort: Annotated[str, Meta(description="one of " + ", ".join(SORTS), max_length=20)] = "start"
    reverse: bool = False
    limit: Annotated[int, Meta(ge=1, le=MOST_JOBS)] = 20
    cluster: Text | None = None
    partition: Text | None = None
    account: Text | None = None
    node: Annotated[Text, about("that ran on this node")] | None = None
    array: Annotated[Text, about("tasks of this array")] | None = None
    exit_code: Annotated[int, Meta(ge=-_MOST_CODE, le=_MOST_CODE)] | None = None
    cursor: Annotated[str, Meta(max_length=4000, description="`next` of the page before")] | None = None


class RunQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which run."""

    run: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class GroupsQuery(RunQuery, forbid_unknown_fields=True, frozen=True):
    """Which run, and which processes are alike."""

    by: Annotated[Text, about("with the same `tags`, `name` or `command`, or several: `name,command`")] = (
        "name"
    )


class ReportQuery(RunQuery, forbid_unknown_fields=True, frozen=True):
    """Which run, and which part of it."""

    between: Annotated[Text, about("only while this mark was set")] | None = None
    step: Annotated[Text, about("only while this step ran")] | None = None
    first: Annotated[Text, about("only from then on: 13:02, +10m after the start")] | None = field(
        name="from", default=None
    )
    last: Annotated[Text, about("and until then")] | None = field(name="to", default=None)


class SeriesQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which columns of which set."""

    set: Text = "job"
    columns: Annotated[str, Meta(max_length=2000, description="names, separated by commas; all if empty")] = (
        ""
    )
    by: Annotated[str, Meta(max_length=400, description="labels, separated by commas: one series each")] = ""
    points: Annotated[int, Meta(ge=1, le=MOST_POINTS)] = 1000


class TokenRequest(Struct, forbid_unknown_fields=True, frozen=True):
    """The body of a request for a new token."""

    name: Annotated[str, Meta(max_length=LONGEST_NAME, description="what it is for")] = ""
    days: Annotated[int, Meta(ge=1, le=3660)] | None = None


# Answers


def _item(name: str, fields: Any, what: str) -> type[Struct]:
    """Return the type of an object with the fields of a named tuple."""
    found = [
        (field, kind, fields._field_defaults.get(field, msgspec.NODEFAULT))
        for field, kind in get_type_hints(fields).items()
    ]
    return msgspec.defstruct(name, found, namespace={"__doc__": f"{what} What is unknown is null."})


JobItem = _item("JobItem", JobRow, "A job in a listing.")
EndedProcessItem = _item("EndedProcessItem", EndedProcess, "A process at its end, as capture recorded it.")
EndedThreadItem = _item("EndedThreadItem", EndedThread, "A thread at its end, as capture recorded it.")
GroupItem = _item("GroupItem", GroupUse, "Processes that are alike, added up.")


class Health(Struct):
    """The service answers."""

    status: str = "ok"


class Me(Struct):
    """Who is asking."""

    user: str
    uid: int
    role: str
    accounts: list[str]
    how: str


class JobsPage(Struct):
    """Jobs, and the cursor of the next page if there is one."""

    jobs: list[JobItem]  # type: ignore[valid-type]
    next: str | None
    problems: list[str]


class ModelsPage(Struct):
    """Reference models without their figures."""

    models: list[ReferenceModel]
    problems: list[str]


class SetsPage(Struct):
    """The columns of each set that has samples of the job."""

    sets: dict[str, tuple[str, ...]]


class SeriesItem(Struct):
    """Samples put together to points. Unknown is null."""

    labels: dict[str, str]
    times: list[float]
    last: dict[str, list[float | None]]
    mean: dict[str, list[float | None]]
    peak: dict[str, list[float | None]]


class SeriesPage(Struct):
    """One series, or one for each combination of labels."""

    series: list[SeriesItem]


class ProcessesPage(Struct):
    """Every process of the job that sampling saw."""

    processes: list[ProcessUse]


class EndedProcessesPage(Struct):
    """Processes of the job that capture recorded. `cut`: only the first ones."""

    ended: list[EndedProcessItem]  # type: ignore[valid-type]
    cut: bool


class EndedThreadsPage(Struct):
    """Threads of the job that capture recorded. `cut`: only the first ones."""

    ended: list[EndedThreadItem]  # type: ignore[valid-type]
    cut: bool


class GroupsPage(Struct):
    """Processes of the job that capture recorded, by what they are alike in. `cut`: only the first ones."""

    groups: list[GroupItem]  # type: ignore[valid-type]
    cut: bool


class NodeItem(Struct):
    """A node, and the running jobs on it that the viewer may see."""

    cluster: str
    node: str
    jobs: list[str]
    state: str | None = None
    age_seconds: float | None = None
    cpu_seconds: float | None = None
    memory_bytes: float | None = None
    processes: float | None = None


class NodesPage(Struct):
    """Nodes with running jobs of the viewer; all nodes for support and admin."""

    nodes: list[NodeItem]


class TokenMade(Struct):
    """A new token, which is shown only this once."""

    token: str
    about: Token


class TokensPage(Struct):
    """Valid tokens."""

    tokens: list[Token]
