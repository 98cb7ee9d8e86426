"""Parse the output of a site's script: lines `name value`, or Prometheus text (format 0.0.4)."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from joblens.core.errors import OutsideError
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Schema

# Numbers are stored as integers: millionths, but bytes as they are, for sizes that would not fit otherwise.
_MILLIONTHS = 1_000_000
_LIMIT = 1 << 63
_MOST_SERIES, _MOST_CELLS = 2_000, 20_000
_LONGEST_HELP = 200
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\["\\n])*)"\s*(?:,|$)')
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NO_NUMBER = ("nan", "inf", "infinity")
_RESERVED = ("time", "jobid", "node")  # columns that every set has in the store
_PARTS = ("_bucket", "_count", "_sum")  # of a histogram or summary: counters


class Series(NamedTuple):
    name: str
    labels: Tuple[Tuple[str, str], ...]  # sorted; an empty label is the same as none
    text: str
    line: int


def parse_output(set_name: str, data: bytes) -> Rows:
    """Return one row per combination of labels, one column per name."""
    series: List[Series] = []
    kinds: Dict[str, str] = {}
    helps: Dict[str, str] = {}
    for number, line in enumerate(map(str.strip, data.decode("utf-8", "replace").split("\n")), 1):
        if line.startswith("#"):
            _take_comment(line, kinds, helps)
        elif line:
            series.append(_parse_line(line, number))
            if len(series) > _MOST_SERIES:
                raise OutsideError(f"line {number}: more than {_MOST_SERIES} series")
    return _arrange(set_name, series, kinds, helps)


def _take_comment(line: str, kinds: Dict[str, str], helps: Dict[str, str]) -> None:
    words = line[1:].split(None, 2)
    if len(words) == 3 and words[0] == "TYPE":
        kinds[words[1]] = words[2]
    elif len(words) == 3 and words[0] == "HELP":
        helps[words[1]] = words[2][:_LONGEST_HELP]


def _parse_line(line: str, number: int) -> Series:
    name = _NAME.match(line)
    rest = line[name.end() :] if name else ""
    labels: Optional[Tuple[Tuple[str, str], ...]] = ()
    if rest.lstrip().startswith("{"):
        inside, _, rest = rest.lstrip()[1:].rpartition("}")
        labels = _parse_labels(inside)
        rest = " " + rest
    words = rest.split()  # the value and an optional timestamp, which is ignored
    if not name or labels is None or rest[:1].strip() or not 1 <= len(words) <= 2 or not _is_number(words[0]):
        raise OutsideError(f"line {number}: syntax error: {line[:60]!r}")
    return Series(name[0], labels, words[0], number)


def _parse_labels(text: str) -> Optional[Tuple[Tuple[str, str], ...]]:
    found: Dict[str, str] = {}
    at = 0
    while text[at:].strip():
        match = _LABEL.match(text, at)
        if not match or match[1] in found:
            return None
        found[match[1]] = re.sub(r"\\(.)", lambda it: "\n" if it[1] == "n" else it[1], match[2])
        at = match.end()
    return tuple(sorted((name, value) for name, value in found.items() if value))


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) or text.lower().lstrip("+-") in _NO_NUMBER


def _arrange(set_name: str, series: List[Series], kinds: Dict[str, str], helps: Dict[str, str]) -> Rows:
    labels = tuple(sorted({name for it in series for name, _ in it.labels}))
    columns: Dict[str, Column] = {}
    cells: Dict[Key, Dict[str, int]] = {}
    for it in series:
        column = columns.setdefault(it.name, _column(it.name, kinds, helps))
        row = cells.setdefault(tuple(dict(it.labels).get(name, "") for name in labels), {})
        if it.name in row:
            raise OutsideError(f"line {it.line}: {it.name} occurs twice with the same labels")
        row[it.name] = _raw(it.text, column.divisor)
    _check_names([*labels, *(column.name for column in columns.values())])
    if len(cells) * len(columns) > _MOST_CELLS:
        raise OutsideError(f"{len(cells)} combinations of labels with {len(columns)} names are too many")
    keys = tuple(sorted(cells))
    values = [cells[key].get(name, ABSENT) for key in keys for name in columns]
    return Rows(Schema(set_name, labels, tuple(columns.values())), keys, values)


def _check_names(names: List[str]) -> None:
    """Each becomes a column of one table, whose names are case-insensitive."""
    taken = set(_RESERVED)
    for name in names:
        if name.lower() in taken:
            raise OutsideError(f"{name} cannot be the name of a series or label: it is taken")
        taken.add(name.lower())


def _column(name: str, kinds: Dict[str, str], helps: Dict[str, str]) -> Column:
    base = name[: -len("_total")] if name.endswith("_total") else name
    grows = "counter" in (kinds.get(name), kinds.get(base)) or any(
        name.endswith(part) and kinds.get(name[: -len(part)]) in ("histogram", "summary") for part in _PARTS
    )
    text = helps.get(name) or helps.get(base) or "from the site's script"
    if grows:
        name = base  # the exposition appends _total to each counter
    divisor = 1 if name.endswith("_bytes") else _MILLIONTHS
    return Column(name, COUNTER if grows else GAUGE, text, divisor=divisor)


def _raw(text: str, divisor: int) -> int:
    """Return ABSENT for what does not fit into 64 bits."""
    if not _NUMBER.fullmatch(text):
        return ABSENT
    value = int(text) * divisor if _WHOLE.fullmatch(text) else float(text) * divisor
    return round(value) if abs(value) < _LIMIT else ABSENT
