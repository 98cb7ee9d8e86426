"""The vocabulary: columns, schemas, rows, samples, jobs, gaps.

Every value on a node is a 64-bit integer exactly as the kernel gave it. Its column defines the conversion to
base units (`value * factor / divisor`), so that counters stay raw until they are read.
"""

from __future__ import annotations

from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple, Union

    Label = Union[str, int]
    Key = Tuple[Label, ...]
    Number = Union[int, float]
else:  # only annotations have them
    Label = Key = Number = object

COUNTER = "counter"
GAUGE = "gauge"

# "Unknown" is not zero. One integer is reserved for it, so that a row stays a plain array of 64-bit numbers.
ABSENT = -(1 << 63)


class Column(NamedTuple):
    name: str  # ends in its base unit: user_seconds, rss_bytes
    kind: str  # COUNTER or GAUGE
    help: str
    factor: int = 1
    divisor: int = 1

    def in_base_units(self, value: int) -> Number:
        if self.divisor == 1:
            return value * self.factor
        return value * self.factor / self.divisor


class Schema(NamedTuple):
    set: str
    labels: Tuple[str, ...]  # name the parts of a row's key
    columns: Tuple[Column, ...]

    def position(self, column: str) -> int:
        return [c.name for c in self.columns].index(column)


class Rows(NamedTuple):
    """One set at one instant: a key per row, and the values of all rows one after the other.

    `schema` and `keys` are the same objects from one reading to the next as long as only values change;
    encoding and exposition rely on that to do the rest only once.
    """

    schema: Schema
    keys: Tuple[Key, ...]
    values: List[int]

    def row(self, number: int) -> List[int]:
        width = len(self.schema.columns)
        return self.values[number * width : (number + 1) * width]


class Reader:
    """Base of collectors that are more than a function: they report what their rows leave out."""

    warning = ""  # why the last rows are incomplete; logged when it changes

    def __call__(self) -> Tuple[Rows, ...]:
        raise NotImplementedError


class Sample(NamedTuple):
    time_ns: int
    rows: Rows


class Job(NamedTuple):
    """Identity of a job. Ids are reused, so it includes the start if that is known."""

    cluster: str
    id: str
    source: str  # slurm, flux, pbs, file or inferred
    start: int = 0  # seconds since 1970, 0 if only the scheduler knows it


class Owner(NamedTuple):
    """A job, its step, and the scheduler's name of the node: one machine can be several nodes."""

    job: Job
    step: str
    node: str


class Gap(NamedTuple):
    """Batches that a node had to drop, and the time range of their samples."""

    first: int  # sequence numbers of the batches
    last: int
    from_ns: int  # of their samples, 0 if unknown
    to_ns: int
    why: str
    boot: str  # may be an earlier boot than that of the batch that reports it


NO_KEY: Tuple[Key, ...] = ((),)  # the keys of a set that has one row and no labels
