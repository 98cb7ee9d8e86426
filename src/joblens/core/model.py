"""The vocabulary: columns, schemas, rows, samples, jobs.

Every value on a node is a 64-bit integer exactly as the kernel gave it. What it means in base units
is said by its column (`value * factor / divisor`), so that counters stay raw until somebody reads.
"""

from __future__ import annotations

from typing import List, Tuple, Union

from joblens.core.named_tuple import NamedTuple

COUNTER = "counter"
GAUGE = "gauge"

# "Unknown" is not zero. One integer stands for it, so that a row stays a plain array of 64-bit numbers.
ABSENT = -(1 << 63)

Label = Union[str, int]
Key = Tuple[Label, ...]
Number = Union[int, float]


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

    `schema` and `keys` are the same objects from one reading to the next for as long as nothing but
    the values changes; whoever encodes or prints rows relies on that to do the rest only once.
    """

    schema: Schema
    keys: Tuple[Key, ...]
    values: List[int]

    def row(self, number: int) -> List[int]:
        width = len(self.schema.columns)
        return self.values[number * width : (number + 1) * width]


class Sample(NamedTuple):
    time_ns: int
    rows: Rows


class Job(NamedTuple):
    """What identifies a job. Ids come round again, so its start belongs to it where it is known."""

    cluster: str
    id: str
    source: str  # slurm, flux, pbs, file or inferred
    start: int = 0  # seconds since 1970, 0 where only the scheduler knows


class Owner(NamedTuple):
    """A job, the step of it, and the node by the scheduler's name: one machine can play several."""

    job: Job
    step: str
    node: str


NO_KEY: Tuple[Key, ...] = ((),)  # the keys of a set that has one row and no labels
