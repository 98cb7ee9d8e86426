"""Texts of questions in PromQL. Names come from outside, and stay names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

WHICH = "joblens_question"
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def equals(label: str, value: str) -> str:
    return f"{label}={quote(value)}"


def one_of(label: str, values: Iterable[str]) -> str:
    return f"{label}=~{quote('|'.join(_SPECIAL.sub(_escape, value) for value in values))}"


def _escape(match: re.Match[str]) -> str:
    return "\\" + match[0]


def lasting(seconds: float) -> str:
    """A duration, never shorter."""
    return f"{max(math.ceil(round(seconds * 1000, 6)), 1)}ms"


def together(queries: Mapping[str, str]) -> str:
    """Several as one question; the label WHICH says which of them an answer is to."""
    return " or ".join(
        f'label_replace({query}, "{WHICH}", {quote(name)}, "", "")' for name, query in queries.items()
    )
