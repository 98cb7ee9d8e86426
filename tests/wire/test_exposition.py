from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Schema
from joblens.wire.exposition import Exposition, render_labels

SCHEMA = Schema(
    "disk",
    ("device",),
    (
        Column("read_bytes", COUNTER, "bytes read", factor=512),
        Column("busy_seconds", COUNTER, "time busy", divisor=1000),
        Column("in_flight", GAUGE, "under way"),
    ),
)
ROWS = Rows(SCHEMA, (("vda",), ("vdb",)), [10, 1500, 2, 20, ABSENT, ABSENT])


def test_prometheus_text() -> None:
    """Base units, `_total` on counters, one head per family, and nothing for what is unknown."""
    assert Exposition(openmetrics=False).render([ROWS]).decode() == (
        "# HELP joblens_disk_read_bytes_total bytes read\n"
        "# TYPE joblens_disk_read_bytes_total counter\n"
        'joblens_disk_read_bytes_total{device="vda"} 5120\n'
        'joblens_disk_read_bytes_total{device="vdb"} 10240\n'
        "# HELP joblens_disk_busy_seconds_total time busy\n"
        "# TYPE joblens_disk_busy_seconds_total counter\n"
        'joblens_disk_busy_seconds_total{device="vda"} 1.5\n'
        "# HELP joblens_disk_in_flight under way\n"
        "# TYPE joblens_disk_in_flight gauge\n"
        'joblens_disk_in_flight{device="vda"} 2\n'
    )


def test_openmetrics() -> None:
    """The family has no `_total`, units are said, and the text ends in EOF."""
    text = Exposition(openmetrics=True).render([ROWS]).decode()
    assert "# TYPE joblens_disk_read_bytes counter\n# UNIT joblens_disk_read_bytes bytes\n" in text
    assert 'joblens_disk_read_bytes_total{device="vda"} 5120\n' in text
    assert text.endswith("# EOF\n")


def test_new_keys_are_seen() -> None:
    """What is remembered from the last time is thrown away when keys change."""
    exposition = Exposition(openmetrics=False)
    exposition.render([ROWS])
    text = exposition.render([Rows(SCHEMA, (("sda",),), [1, 2, 3])]).decode()
    assert 'device="sda"' in text
    assert "vda" not in text


@given(st.text(st.characters(codec="utf-8")))
def test_labels_from_outside(value: str) -> None:
    """Quotes, backslashes and newlines of a name cannot end the label or the line."""
    text = render_labels(("job",), (value,))
    inner = text[len('{job="') : -len('"}')]
    assert re.fullmatch(r'(?:[^"\\\n]|\\["\\n])*', inner)
    assert inner.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\") == value or "\\" in value
