"""Results of checks: each is right, wrong or could not be checked, with what to do."""

from __future__ import annotations

import json
import sys
from typing import Iterable, List, NamedTuple, Optional

from joblens.cli.table import room
from joblens.core.errors import printable
from joblens.reports.style import encodable
from joblens.reports.wrapping import wrap

_MARKS = {True: "✓", False: "✗", None: "?"}


class Finding(NamedTuple):
    what: str
    right: Optional[bool]  # None: it is not available, or could not be checked
    said: str
    do: str = ""  # advice if it is not right


def print_findings(findings: Iterable[Finding], as_json: bool) -> int:
    """Print each as soon as it is known, and return the exit code."""
    found = []
    for finding in findings:
        found.append(finding)
        if not as_json:
            text = "\n".join(map(printable, render(finding, room())))
            print(encodable(text, sys.stdout), flush=True)
    right = all(finding.right is not False for finding in found)
    if as_json:
        print(json.dumps({"right": right, "findings": [it._asdict() for it in found]}, indent=1))
    return 0 if right else 1


def render(finding: Finding, width: Optional[int] = None) -> List[str]:
    """Wrap at a width, if there is one."""
    lines = [(f"{_MARKS[finding.right]} {finding.what:<14} ", finding.said)]
    if finding.do and not finding.right:
        lines.append((f"  {'':<14} → ", finding.do))
    return [it for head, text in lines for it in (wrap(head, text, width) if width else [head + text])]
