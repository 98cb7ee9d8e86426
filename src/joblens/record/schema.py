"""The JSON Schema of a record, and its parts as tables for docs/api.md."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from joblens.record.report import JobRecord

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema() -> Mapping[str, object]:
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


def render_tables() -> str:
    """Return a table of the parts of a record, and one for each part with its fields."""
    schema = msgspec.json.schema(JobRecord)
    parts: Mapping[str, Any] = schema["$defs"]
    names = ["JobRecord", *(name for name in _in_order("JobRecord", parts) if name != "JobRecord")]
    return "\n".join(line for name in names for line in _render(name, parts[name])).rstrip() + "\n"


def _in_order(name: str, parts: Mapping[str, Any]) -> dict[str, None]:
    """Return a part and those inside of it, each once and in the order of the fields."""
    found = {name: None}
    for field in parts[name]["properties"].values():
        for inner in _parts_of(field):
            found |= {inner: None} if inner in found else _in_order(inner, parts)
    return found


def _parts_of(field: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the parts that a field consists of."""
    for kind in (field, field.get("items", {}), *field.get("anyOf", [])):
        if "$ref" in kind:
            yield kind["$ref"].rpartition("/")[2]


def _render(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n\n{part['description']}\n\n| field | type | |\n|---|---|---|"
    for field, known in part["properties"].items():
        yield f"| `{field}` | {_type(known)} | {known.get('description', '')} |"
    yield ""


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if field.get("items") else "list"
    if field.get("type") == "object":
        return "texts by name"
    if "anyOf" in field:
        kinds = [_type(kind) for kind in field["anyOf"] if kind.get("type") != "null"]
        return "number" if kinds == ["integer", "number"] else " or ".join(kinds)
    return {"string": "text", "boolean": "true or false"}.get(field["type"], str(field["type"]))
