"""From samples to the columns of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT, Column, Rows, Sample, Schema
from joblens.core.named_tuple import NamedTuple

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]
    Arrays = dict[str, Array]  # by name, one for each column

TIME = "time"
_WORD = 1 << 63
_DECIMAL_DIGITS = 18  # as many as fit into 64 bits
_SCALES = {10**digits: digits for digits in range(1, 10)}
_MOST = 10**18  # of a factor or a divisor: whatever reads it can compute with it
LATEST_NS = 9 * 10**18  # in 2255; DuckDB's last nanosecond is in 2262


class Table(NamedTuple):
    select: str  # the columns as they are stored, in SQL
    columns: Arrays  # to select it from
    labels: tuple[str, ...]


def check(samples: Iterable[Sample]) -> None:
    """Raises MalformedError for what cannot be stored: a message can be well-formed and yet make no sense."""
    seen: dict[int, Rows] = {}
    for time_ns, rows in samples:
        if not 0 <= time_ns < LATEST_NS:
            raise MalformedError(rows.schema.set, f"{time_ns} ns is not a valid time")
        if seen.setdefault(id(rows.keys), rows) is rows:
            _check_schema(rows.schema)
            _check_keys(rows)


def _check_schema(schema: Schema) -> None:
    names = [name.lower() for name in (TIME, *schema.labels, *map(stored_name, schema.columns))]
    if len(set(names)) < len(names) or not all(map(_is_word, names)) or not schema.columns:
        raise MalformedError(schema.set, "its columns are not named, or two of them alike")
    if any(not 1 <= column.divisor <= _MOST or abs(column.factor) > _MOST for column in schema.columns):
        raise MalformedError(schema.set, "a column has a factor or a divisor that no unit has")


def stored_name(column: Column) -> str:
    return column.name or "value"  # a set whose only number says that the row is there


def _is_word(name: str) -> bool:
    return name.isprintable() and bool(name) and " " not in name


def _check_keys(rows: Rows) -> None:
    if any(len(key) != len(rows.schema.labels) for key in rows.keys):
        raise MalformedError(rows.schema.set, "a key has not as many parts as there are labels")
    wrong = [
        part
        for part in chain.from_iterable(rows.keys)
        if type(part) is not str and not (type(part) is int and -_WORD <= part < _WORD)
    ]
    if wrong:
        raise MalformedError(
            rows.schema.set, f"{wrong[0]!r:.60} is neither text nor a 64-bit integer in a key"
        )


def tables(samples: Iterable[Sample], job: str, node: str) -> list[Table]:
    """One for all samples with the same columns. Sets that are the node's get job and node too."""
    return [_table(group, job, node) for group in _same_columns(samples)]


def _same_columns(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        schema, keys = sample.rows.schema, sample.rows.keys
        if keys:
            kinds = tuple(map(type, keys[0]))
            groups.setdefault((schema.labels, schema.columns, kinds), []).append(sample)
    return iter(groups.values())


def _table(samples: list[Sample], job: str, node: str) -> Table:
    import numpy

    schema = samples[0].rows.schema
    heights = [len(sample.rows.keys) for sample in samples]
    times = numpy.repeat(numpy.array([sample.time_ns for sample in samples], dtype=numpy.int64), heights)
    rows = [numpy.array(sample.rows.values, dtype=numpy.int64) for sample in samples]
    values = numpy.concatenate(rows).reshape(-1, len(schema.columns))
    labels: Arrays = {}
    for name, text in (("jobid", job), ("node", node)):
        if name not in schema.labels:
            labels[name] = numpy.full(len(times), storable(text), dtype=object)
    for number, name in enumerate(schema.labels):
        labels[name] = _label([key[number] for sample in samples for key in sample.rows.keys])
    return make_table(schema, times, labels, values.T)


def make_table(
    schema: Schema,
    times: Array,
    labels: Arrays,
    values: Iterable[Array],
) -> Table:
    """`labels`: an array each, by name. `values`: the numbers of each column, as samples have them."""
    import numpy

    columns = {TIME: times, **labels}
    selected = [f"make_timestamp_ns({TIME}) AS {TIME}", *map(identifier, labels)]
    for number, (column, numbers) in enumerate(zip(schema.columns, values)):
        raw = f"raw {number}"  # names have no blanks in them
        columns[raw] = numpy.ascontiguousarray(numbers)
        selected.append(f"{in_base_units(column, raw, columns[raw])} AS {identifier(stored_name(column))}")
    return Table(", ".join(selected), columns, schema.labels)


def _label(cells: list[Any]) -> Array:
    import numpy

    if all(type(cell) is int for cell in cells):
        return numpy.array(cells, dtype=numpy.int64)
    return numpy.array([storable(str(cell)) for cell in cells], dtype=object)


def storable(text: str) -> str:
    """Parquet's text is UTF-8, which a name of the kernel's need not be."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def in_base_units(column: Column, raw: str, values: Array) -> str:
    """Exact where 64 bits are enough, which they are but for nonsense; else a DOUBLE."""
    least, most = int(values.min()), int(values.max())
    known = identifier(raw)
    if least == most:  # as counters of what a node does not have; DuckDB computes it once
        known = "NULL::BIGINT" if least == ABSENT else f"({least})::BIGINT"
    elif least == ABSENT:
        known = f"nullif({known}, {ABSENT + 1} - 1)"
        least = int(values[values != ABSENT].min())
    largest = max(-least, most) * abs(column.factor) if most != ABSENT else 0
    scaled = known if column.factor == 1 else f"{known} * {column.factor}"
    if column.divisor == 1 and largest < _WORD:
        return scaled
    scale = _SCALES.get(column.divisor)
    if scale is None or largest >= 10**_DECIMAL_DIGITS:
        return f"{known}::DOUBLE * {column.factor} / {column.divisor}"
    whole = f"({scaled})::DECIMAL({_DECIMAL_DIGITS}, 0)"
    return f"({whole} * {1 / column.divisor:.{scale}f})::DECIMAL({_DECIMAL_DIGITS}, {scale})"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
