"""What a server that speaks PromQL answers, into series.

Most of an answer is samples, `[1794807197,"12.5"]` each, and to make a list of each takes longer than all the
rest of a report. So they are cut out of the text, what is left is read as the JSON that it is, and they are
read as rows of numbers. A text in JSON cannot hold what is looked for here, as its quotes are escaped.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

_BEGIN, _END = b'"values":[[', b"]]"


class Found(NamedTuple):
    """One series: what it is called, and its samples in order of time. What is no number is left out."""

    labels: dict[str, str]
    times: list[float]
    values: list[float]  # empty where only times were asked for


class Answer(NamedTuple):
    plain: Any  # as JSON has it, with numbers of `cut` where samples were
    cut: list[bytes]


def read_answer(body: bytes) -> Answer:
    """Raises ValueError or RecursionError."""
    first, *pieces = body.split(_BEGIN)
    parts, cut = [first], list[bytes]()
    for piece in pieces:
        samples, end, rest = piece.partition(_END)
        if not end:
            raise ValueError("samples without an end")
        parts += [b'"values":%d' % len(cut), rest]
        cut.append(samples)
    return Answer(json.loads(b"".join(parts)), cut)


def read_series(answer: Answer, only_times: bool = False) -> list[Found]:
    """Raises KeyError, TypeError, ValueError, IndexError, AttributeError or OverflowError."""
    found, number = list[Found](), 0
    for item in answer.plain["data"]["result"]:
        labels = item["metric"]
        if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
            raise ValueError("labels that are no texts")
        if type(item.get("values")) is int:
            if item["values"] != number:
                raise ValueError("a number in place of samples")
            times, values = _numbers(answer.cut[number], only_times)
            number += 1
        else:
            times, values = _pairs(item["values"] if "values" in item else [item["value"]])
        found.append(Found(labels, times, values))
    return found


def _numbers(samples: bytes, only_times: bool) -> tuple[list[float], list[float]]:
    words = samples.removesuffix(b'"').replace(b'"],[', b',"').split(b',"')  # time, value, time, value, …
    if len(words) % 2:
        raise ValueError("a time without a value")
    times = list(map(float, words[::2]))
    return (times, []) if only_times else _finite(times, list(map(float, words[1::2])))


def _pairs(pairs: Any) -> tuple[list[float], list[float]]:
    known = [(float(time), float(text)) for time, text in pairs]
    return _finite([time for time, _ in known], [value for _, value in known])


def _finite(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    if math.isfinite(sum(times)) and math.isfinite(sum(values)):
        return times, values
    known = [(t, v) for t, v in zip(times, values) if math.isfinite(t) and math.isfinite(v)]
    return [time for time, _ in known], [value for _, value in known]
