"""Tags and annotations of stored jobs: merged, replaced, removed, found, and by whom."""

from __future__ import annotations

import json
import os
import pwd
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.api.store import Store
from joblens.cli import main
from joblens.core.errors import UsageError
from joblens.record.report import Job, JobRecord
from joblens.store.edit import NotAllowedError, parse_pairs
from joblens.store.home import Home, find_home, make_home
from joblens.store.records import save_record


def made(id: str, **more: Any) -> JobRecord:
    return JobRecord(
        job=Job(id=id, cluster="fox", name="train", user="alice", start=1.7e9, end=1.7e9 + 60, **more)
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    home = make_home(find_home())
    save_record(home.records, made("42", tags={"model": "vit"}))
    save_record(home.records, made("43"))
    return home


def test_merged_replaced_and_removed(home: Home) -> None:
    """Each change is a new version of the record; the newest counts, also after compaction."""
    with Store(home) as store:
        assert store.tag("42", {"lr": "0.1"}) == {"model": "vit", "lr": "0.1"}
        assert store.tag("42", {}, remove=["model"]) == {"lr": "0.1"}
        assert store.annotate("42", {"note": "a", "seen": "b"}) == {"note": "a", "seen": "b"}
        assert store.annotate("42", {"note": "c"}, replace=True) == {"note": "c"}
        store.compact()
        job = store.job("42").job
        assert (job.tags, job.annotations) == ({"lr": "0.1"}, {"note": "c"})
    with Store(home) as store:
        assert [it.id for it in store.jobs(tags={"lr": "0.1"})] == ["42"]
        assert store.jobs(tags={"model": "vit"}) == []
        assert [it.id for it in store.jobs(annotations={"note": "c"})] == ["42"]
        assert store.jobs(annotations={"note": "a"}) == []


def test_nothing_is_written_if_nothing_changes(home: Home) -> None:
    """The same tag again makes no new version."""
    with Store(home) as store:
        store.tag("42", {"model": "vit"})
    assert len(list(home.records.glob("*/42.*"))) == 1


def test_commands(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """`tag`, `annotate`, and the filters of `jobs`; a job that is not there is one sentence."""
    assert main(["tag", "42", "lr:0.1", "--remove", "model"]) == 0
    assert main(["annotate", "42", "see=https://example.org/x:1", "--json"]) == 0
    out = capsys.readouterr().out
    assert out == 'lr:0.1\n{\n  "see": "https://example.org/x:1"\n}\n'
    assert main(["jobs", "--annotation", "see:https://example.org/x:1", "--json"]) == 0
    assert [it["id"] for it in json.loads(capsys.readouterr().out)] == ["42"]
    assert main(["job", "42"]) == 0
    assert "see: https://example.org/x:1" in capsys.readouterr().out
    assert main(["tag", "44", "a:b"]) == 1
    assert "there is no job '44'" in capsys.readouterr().err
    assert main(["tag", "42"]) == 2
    assert main(["tag", "42", "nothing"]) == 2


def test_only_owner_and_staff(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another user of a shared store nor a running job changes anything."""
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("P", (), {"pw_name": "mallory"}))
    with Store(home) as store, pytest.raises(NotAllowedError, match="job 42 is alice's"):
        store.tag("42", {"a": "b"})
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("P", (), {"pw_name": "alice"}))
    with Store(home) as store:
        assert store.tag("42", {"a": "b"})["a"] == "b"


def test_changes_at_the_same_time_are_all_there(home: Home) -> None:
    """Merged, none is lost."""

    def tag(number: int) -> None:
        with Store(home) as store:
            store.tag("43", {f"t{number}": "1"})

    threads = [threading.Thread(target=tag, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(home) as store:
        assert sorted(store.job("43").job.tags or {}) == [f"t{number}" for number in range(8)]


@given(st.text(max_size=30))
def test_pairs_of_any_text(text: str) -> None:
    """A name that is not empty, or a UsageError."""
    try:
        found = parse_pairs([text])
    except UsageError:
        return
    assert len(found) == 1
    assert all(found)
