"""A store that a released version wrote: every job is there, once, with the figures that it had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joblens.cli import main

from .released import VERSIONS, differences, unpack

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


@pytest.fixture
def expected(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "store"))
    return unpack(version, "store", tmp_path)


def test_every_job_once(expected: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Stored, compacted, waiting for the lake, of a hub, of sacct, and one whose supervisor was killed."""
    assert len(list((tmp_path / "store/incoming").iterdir())) == 1
    listed = ask(capsys, "jobs")
    assert [job["id"] for job in listed] == [job["id"] for job in expected["listed"]]
    assert len(listed) == 7
    assert differences(_numbers(expected["listed"]), _numbers(listed)) == []
    for id, record in expected["jobs"].items():
        found = ask(capsys, "job", id)
        # What this version summarises itself, it may put into other words.
        compared = ("job", "asked", "used") if record["job"]["name"] == "crashes" else tuple(record)
        assert differences({it: record[it] for it in compared}, found) == []
    assert list((tmp_path / "store/incoming").iterdir()) == []


def test_without_its_catalog(expected: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The records are the truth: the index is rebuilt from them."""
    (tmp_path / "store/catalog.sqlite").unlink()
    listed = ask(capsys, "jobs")
    assert differences(_numbers(expected["listed"]), _numbers(listed)) == []


def test_compacted_anew(expected: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Files of the lake and records that this version merges keep every sample and every job."""
    ask(capsys, "jobs")
    before = {id: ask(capsys, "job", id) for id in expected["jobs"]}
    assert main(["db", "compact"]) == 0
    capsys.readouterr()
    assert {id: ask(capsys, "job", id) for id in expected["jobs"]} == before
    (marked,) = (id for id, record in expected["jobs"].items() if record["job"]["name"] == "marked")
    part = ask(capsys, "job", marked, "--between", "solve")
    assert part["used"]["duration_seconds"] < expected["jobs"][marked]["used"]["duration_seconds"]
    assert part["data"]["samples"] >= 4
    assert main(["db", "check"]) == 0


def _numbers(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in job.items() if name != "verdict"} for job in listed]
