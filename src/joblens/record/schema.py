"""The JSON Schema of a record, and its parts as tables for docs/api.md."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from joblens.record.report import JobRecord

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema() -> Any:
    """Return the JSON Schema of a record, as `joblens job --json` prints it and the store has it."""
    found = msgspec.json.schema(JobRecord)
    start = found["$defs"]["Job"]["properties"]["start"]
    start["anyOf"].append({"type": "null"})  # of a job that never started; the store has its end there
    return {"$schema": _DIALECT, "title": "Record of a job", **_simple(found)}


def _simple(value: Any) -> Any:
    """Merge integers and floats to the one number type of JSON; leave out bounds of 64 bits."""
    if isinstance(value, list):
        return [_simple(it) for it in value]
    if not isinstance(value, dict):
        return value
    kinds = value.get("anyOf", [])
    if {"integer", "number"} <= {kind.get("type") for kind in kinds}:
        value = {**value, "anyOf": [kind for kind in kinds if kind.get("type") != "integer"]}
    bounds = {name for name in ("minimum", "maximum", "exclusiveMaximum") if value.get(name)}  # but for zero
    return {name: _simple(it) for name, it in value.items() if name not in bounds}


class _Node(Struct):
    """A part or a field, in the schema that msgspec makes."""

    ref: str = field(default="", name="$ref")
    type: str = ""
    description: str = ""
    items: "_Node | None" = None
    any_of: list["_Node"] = field(default_factory=list, name="anyOf")
    properties: dict[str, "_Node"] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """The name of the part that it refers to."""
        return self.ref.rpartition("/")[2]


def render_tables() -> str:
    """Return a table of the parts of a record, and one for each part with its fields."""
    parts = msgspec.convert(msgspec.json.schema(JobRecord)["$defs"], dict[str, _Node])
    return (
        "\n".join(line for it in _in_order("JobRecord", parts) for line in _render(it, parts[it])).rstrip()
        + "\n"
    )


def _in_order(name: str, parts: Mapping[str, _Node]) -> dict[str, None]:
    """Return a part and those inside of it, each once and in the order of the fields."""
    found = {name: None}
    for it in parts[name].properties.values():
        for part in _parts_of(it):
            if part not in found:
                found |= _in_order(part, parts)
    return found


def _parts_of(it: _Node) -> Iterator[str]:
    """Yield the names of the parts that a field consists of."""
    if it.ref:
        yield it.part
    for kind in ([it.items] if it.items else []) + it.any_of:
        yield from _parts_of(kind)


def _render(name: str, part: _Node) -> Iterator[str]:
    yield f"### {name}\n\n{part.description}\n\n| field | type | |\n|---|---|---|"
    for it, known in part.properties.items():
        yield f"| `{it}` | {_type(known)} | {known.description} |"
    yield ""


def _type(known: _Node) -> str:
    if known.ref:
        return f"[{known.part}](#{known.part.lower()})"
    if known.type == "array":
        return f"list of {_type(known.items)}" if known.items not in (None, _Node()) else "list"
    if known.type == "object":
        return "texts by name"
    if known.any_of:
        kinds = [_type(kind) for kind in known.any_of if kind.type != "null"]
        return "number" if kinds == ["integer", "number"] else " or ".join(kinds)
    return {"string": "text", "boolean": "true or false"}.get(known.type, known.type)
