"""A strict reader of OpenMetrics text, for what the agent writes: counters and gauges.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HEAD = re.compile(r"# (?P<what>TYPE|HELP|UNIT) (?P<family>[a-z][a-z0-9_]*) (?P<text>.+)")
_LABEL = r'[a-z][a-z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(
    rf"(?P<name>[a-z][a-z0-9_]*)(?P<labels>\{{{_LABEL}(?:,{_LABEL})*\}})? (?P<value>-?[0-9][0-9.e+-]*)"
)


class Family(NamedTuple):
    heads: dict[str, str]  # TYPE, HELP and UNIT
    samples: dict[str, float]  # by name and labels as written


def parse_openmetrics(text: str) -> dict[str, Family]:
    """The families by name. Fails where the text breaks a rule."""
    *lines, last = text.splitlines()
    assert last == "# EOF"
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    name = ""
    for line in lines:
        head = _HEAD.fullmatch(line)
        if head and head["family"] != name:
            name = head["family"]
            assert name not in families, f"{name} is not in one piece"
            families[name] = Family({}, {})
        if head:
            assert not families[name].samples, f"{line} stands behind samples"
            assert head["what"] not in families[name].heads, f"twice: {line}"
            families[name].heads[head["what"]] = head["text"]
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        series = sample["name"] + (sample["labels"] or "")
        suffix = {"counter": "_total", "gauge": ""}[families[name].heads["TYPE"]]
        assert sample["name"] == name + suffix, line
        assert series not in families[name].samples, f"twice: {line}"
        families[name].samples[series] = float(sample["value"])
    for name, family in families.items():
        assert name.endswith("_" + family.heads.get("UNIT", "")) or "UNIT" not in family.heads, name
    return families
