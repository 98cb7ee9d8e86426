"""Answers that are cut off, damaged or nonsense: MalformedError or rows left out, never anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.core.json_file import parse_json
from joblens.record.fields import read
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.flux import parse_flux
from joblens.schedulers.parse_result import ParseResult
from joblens.schedulers.pbs import parse_pbs
from joblens.schedulers.slurm.json_output import parse_sacct_json
from joblens.schedulers.slurm.sacct import columns_of, parse_sacct
from joblens.schedulers.slurm.scontrol import parse_scontrol
from joblens.schedulers.slurm.squeue import parse_squeue

from .recording import MARK, NEWER, RECORDED, recorded

Parse = Callable[[str], ParseResult]
FLUX, PBS = (RECORDED / "flux-0.88/ended.json").read_text(), (RECORDED / "pbs-23.06/ended.json").read_text()
ASKED = columns_of(["reason", "workdir", "submitline", "reqnodes"])
TEXTS: dict[str, tuple[Parse, str]] = {
    "squeue": (lambda text: parse_squeue(text, MARK), recorded("squeue.txt")),
    "sacct": (lambda text: parse_sacct(text, MARK, ASKED), recorded("sacct.txt")),
    "sacct by header": (parse_sacct, recorded("sacct_header.txt")),
    "scontrol": (parse_scontrol, recorded("scontrol.txt")),
    "scontrol -o": (parse_scontrol, recorded("scontrol_oneline.txt")),
    "sacct --json": (parse_sacct_json, recorded("sacct.json")),
    "sacct --json, newest": (parse_sacct_json, recorded("sacct.json", NEWER[-1])),
    "flux": (parse_flux, FLUX),
    "pbs": (parse_pbs, PBS),
}
PARSERS = [pytest.param(*it, id=name) for name, it in TEXTS.items()]
TREES = [
    pytest.param(*it, id=name) for name, it in TEXTS.items() if "json" in name or name in {"flux", "pbs"}
]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def check(parse: Parse, text: str) -> None:
    try:
        told = parse(text)
    except MalformedError:
        return
    assert all(isinstance(job, BatchJob) and job.id for job in told.jobs)
    for job in told.jobs:
        assert read(parse_json(json.dumps(job.to_dict(), allow_nan=False)), BatchJob) == job  # as it is kept
        assert job.shown_id


@pytest.mark.parametrize(("parse", "text"), PARSERS)
@settings(max_examples=40)
@given(data=st.data())
def test_cut_off(parse: Parse, text: str, data: st.DataObject) -> None:
    check(parse, text[: data.draw(st.integers(0, len(text)))])


@pytest.mark.parametrize(("parse", "text"), PARSERS)
@settings(max_examples=40)
@given(data=st.data())
def test_damaged(parse: Parse, text: str, data: st.DataObject) -> None:
    """Something else stands somewhere in it."""
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 30))
    check(parse, text[:at] + data.draw(st.text(max_size=20)) + text[at + length :])


@pytest.mark.parametrize(("parse", "text"), PARSERS)
@settings(max_examples=40)
@given(noise=st.text() | st.text(alphabet='JobId=|~mark{}[]":,0123456789 \n\t'))
def test_nonsense(parse: Parse, text: str, noise: str) -> None:
    check(parse, noise)
    check(parse, f"JobID|State\n{noise}")


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, it in items for place in places(it, (*path, key)))]


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    new = {key: replaced(it, path[1:], value) if key == path[0] else it for key, it in items}
    return new if isinstance(tree, dict) else list(new.values())


@pytest.mark.parametrize(("parse", "text"), TREES)
@settings(max_examples=40)
@given(data=st.data())
def test_values_of_another_kind(parse: Parse, text: str, data: st.DataObject) -> None:
    """JSON in which any one place holds something else."""
    tree = json.loads(text)
    place = data.draw(st.sampled_from(places(tree)))
    check(parse, json.dumps(replaced(tree, place, data.draw(ODD))))


@pytest.mark.parametrize(("parse", "text"), TREES)
def test_too_deep(parse: Parse, text: str) -> None:
    with pytest.raises(MalformedError):
        parse("[" * 100_000)


def test_other_fields_are_kept() -> None:
    """These parsers do find jobs in these texts, so that the above says something."""
    assert {name: len(parse(text).jobs) for name, (parse, text) in TEXTS.items()} == {
        "squeue": 9,
        "sacct": 16,
        "sacct by header": 16,
        "scontrol": 15,
        "scontrol -o": 15,
        "sacct --json": 8,
        "sacct --json, newest": 8,
        "flux": 13,
        "pbs": 23,
    }


@pytest.mark.parametrize("name", ["flux", "pbs"])
def test_negative_amounts_are_unknown(name: str) -> None:
    parse, text = TEXTS[name]
    for wrong in ('"ncores": -1', '"duration": -1.5', '"ncpus": -2'):
        field = wrong.partition(":")[0]
        check(parse, re.sub(rf"{field}: *[-\d.]+", wrong, text))
