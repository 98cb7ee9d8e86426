"""`joblens schema`: the JSON Schema of a record is that of the types, and of what is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from joblens.cli import main
from joblens.record.fields import read
from joblens.record.report import JobRecord
from store.test_reports import RECORDS


def make(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["schema"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_field_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    for name, part in make(capsys)["$defs"].items():
        assert part["description"], name
        missing = [field for field, known in part["properties"].items() if not known.get("description")]
        assert missing == [], name


def unknown(value: Any, part: dict[str, Any], parts: dict[str, Any], at: str = "") -> Iterator[str]:
    """The keys of plain data that the schema does not have."""
    for kind in (part, *part.get("anyOf", [])):
        inner = parts[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
        if isinstance(value, list) and "items" in inner:
            for it in value:
                yield from unknown(it, inner["items"], parts, f"{at}[]")
        elif isinstance(value, dict) and "properties" in inner:
            for name, it in value.items():
                if name not in inner["properties"]:
                    yield f"{at}.{name}"
                else:
                    yield from unknown(it, inner["properties"][name], parts, f"{at}.{name}")


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_as_the_schema_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each key of a record is in the schema, and what is required is there."""
    schema, plain = make(capsys), RECORDS[name].to_dict()
    assert list(unknown(plain, schema, schema["$defs"])) == []
    assert schema["$defs"]["JobRecord"]["required"] == ["job"]
    assert read(json.loads(json.dumps(plain)), JobRecord) == RECORDS[name]
    assert list(unknown({"job": {"more": 1}}, schema, schema["$defs"])) == [".job.more"]
