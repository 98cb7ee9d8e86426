"""Figures of the page /now."""

from __future__ import annotations

import json

from joblens.core.json_file import parse_json
from joblens.core.model import ABSENT, GAUGE, Column, Schema
from joblens.wire.live import describe_set


def test_a_figure_that_no_reader_could_parse() -> None:
    """A node with an absurd factor loses that figure, and no reader the page of all nodes."""
    schema = Schema("load", (), (Column("load1", GAUGE, "", factor=10**12),))
    for value, expected in ((1 << 62, None), (ABSENT, None), (5, 5 * 10**12)):
        found = describe_set(1, schema, ((),), [value])
        assert found is not None
        assert found["rows"] == [[expected]]
        assert parse_json(json.dumps(found))["rows"] == [[expected]]
