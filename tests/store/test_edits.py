"""Tags and annotations of jobs that run or are staged: their record has them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.api.store import Store
from joblens.cli import main
from joblens.jobs.archive import change_archive, open_archive
from joblens.jobs.live_lists import save_live
from joblens.jobs.submit import submit
from joblens.record.report import Job, JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.listing import JobFilter
from joblens.store.edits import Change, add_edit, find_edits
from joblens.store.home import Home, find_home, make_home
from joblens.store.records import save_record
from joblens.usermode.capture import CaptureSession, SessionState, load_session, stage
from jobs.archives import make_archive, make_job, make_records
from waiting import wait_for

NAMES = st.sampled_from("abc")
PAIRS = st.dictionaries(NAMES, st.sampled_from("xy"))
CHANGES = st.builds(
    lambda add, remove, in_place: Change(add=add, remove=remove, in_place=in_place),
    PAIRS,
    st.lists(NAMES, unique=True),
    st.booleans(),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    return make_home(find_home())


@given(PAIRS, CHANGES, CHANGES, CHANGES)
def test_one_change_for_several(before: dict[str, str], one: Change, two: Change, three: Change) -> None:
    """What is kept does the same as one after the other."""
    assert one.then(two).then(three).of(before) == three.of(two.of(one.of(before)))


def test_a_job_of_run_while_it_runs(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """It is found by its new tag while it runs, and its record has it, also if that is computed again."""
    command = [sys.executable, "-m", "joblens", "run", "--quiet", "--tag", "a:1", "--", "cat"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        with Store(home) as store:
            (id,) = wait_for("the job", store.running)
            wait_for("its row", lambda: [it for it in store.listed(JobFilter()) if it.job.id == id])
        assert main(["tag", id, "b:2", "--remove", "a"]) == 0
        assert main(["annotate", "last", "note:hot"]) == 0
        assert main(["annotate", id, "seen:yes", "--json"]) == 0
        assert '"note": "hot",\n  "seen": "yes"' in capsys.readouterr().out
        assert main(["jobs", "--tag", "b:2", "--annotation", "note:hot", "--json"]) == 0
        assert id in capsys.readouterr().out
    finally:
        process.communicate()  # at the end of its input it ends
    with Store(home) as store:
        job = store.job(id).job
        assert (job.tags, job.annotations) == ({"b": "2"}, {"note": "hot", "seen": "yes"})
        assert store.tag(id, {"b": "3"}) == {"b": "3"}
        assert store.job(id).job.tags == {"b": "3"}
        store.delete(id)
    assert list((home.path / "edits").iterdir()) == []


def test_a_job_that_a_hub_follows(home: Home) -> None:
    """Its record gets the tag whenever it is made; a later run with the same id does not."""
    start = time.time() - 100
    job = BatchJob("fox", "42", "slurm", user="alice", name="n", state="RUNNING", start=start, nodes=("c1",))
    save_live(home, "hub", [job], time.time(), cluster="fox")
    with Store(home) as store:
        assert store.tag("42", {"a": "1"}) == {"a": "1"}
        assert store.tag("42", {"b": "2"}) == {"a": "1", "b": "2"}
    for moment, expected in ((start, {"a": "1", "b": "2"}), (start + 4000, None)):
        made = Job(id="42", cluster="fox", name="n", user="alice", start=moment, end=moment + 1)
        save_record(home.records, JobRecord(job=made))
        assert made.tags == expected


def start_session(home: Home, id: str, start: float) -> Path:
    folder = home.path / "capture" / id
    folder.mkdir(parents=True)
    records = os.path.realpath(folder)
    state = SessionState(job=make_job(id), how="here", hosts=["c1"], records=records, start=start)
    CaptureSession(folder, state).save()
    return folder


def test_the_last_is_the_newest(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """One that runs or is captured, if it began after the stored ones; which one it was is said."""
    start = time.time() - 100
    made = Job(id="41", cluster="fox", name="old", user="alice", start=start, end=start + 50)
    save_record(home.records, JobRecord(job=made))
    assert main(["tag", "last", "a:1"]) == 0
    job = BatchJob("fox", "42", "slurm", user="alice", name="n", state="RUNNING", start=start + 10)
    save_live(home, "hub", [job], time.time(), cluster="fox")
    assert main(["tag", "last", "a:2"]) == 0
    folder = start_session(home, "r7", start + 20)
    assert main(["annotate", "last", "a:3"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [it.split(" (")[0] for it in said] == [f"joblens: job {it}@fox" for it in ("41", "42", "r7")]
    assert said[0].endswith("(old) has changed")
    with Store(home) as store:
        assert store.job("41").job.tags == {"a": "1"}
    edits = find_edits(home.path, ("fox", "42", start + 10))
    assert edits is not None
    assert edits.tags.add == {"a": "2"}
    assert load_session(folder).state.annotations == {"a": "3"}


def test_a_session(home: Home, tmp_path: Path) -> None:
    """What `joblens start` began is staged with them."""
    folder = start_session(home, "r7", make_job("r7").start or 0)
    (folder / "c1.capture").write_bytes(make_records())
    assert main(["tag", "r7", "a:1"]) == 0
    assert main(["annotate", "r7@fox", "note:x"]) == 0
    staged = stage(load_session(folder), tmp_path)
    assert (staged.manifest.tags, staged.manifest.annotations) == ({"a": "1"}, {"note": "x"})


def test_a_staged_archive(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its records stay as they are; the stored job has the tags and annotations."""
    path = make_archive(tmp_path, "r9", nodes=2, tags={"a": "1"})
    with open_archive(path) as archive:
        before = archive.manifest
    assert main(["tag", str(path), "b:2", "--remove", "a"]) == 0
    assert capsys.readouterr().out == "b:2\n"
    assert main(["annotate", str(path), "note:x"]) == 0
    with open_archive(path) as archive:
        assert archive.manifest == before.replace(tags={"b": "2"}, annotations={"note": "x"})
    outcome = submit(home, path, lambda job: None)
    assert (outcome.problem, outcome.processes) == ("", 4)
    with Store(home) as store:
        job = store.job("r9").job
        assert (job.tags, job.annotations) == ({"b": "2"}, {"note": "x"})
    path.write_bytes(b"broken" * 100)
    assert main(["tag", str(path), "b:3"]) == 3
    assert [it.name for it in tmp_path.glob("*.joblens*")] == ["r9.joblens"]


def test_a_link_to_an_archive(home: Home, tmp_path: Path) -> None:
    """The archive changes, the link and the mode stay. What its models have judged is not in an archive."""
    path = make_archive(tmp_path, "r9")
    path.chmod(0o640)
    link = tmp_path / "link.joblens"
    link.symlink_to(path)
    assert main(["tag", str(link), "b:2"]) == 0
    assert main(["annotate", str(link), "judged:usual"]) == 2
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    change_archive(path, lambda it: it.replace(annotations={"judged": "usual", "note": "x"}))
    submit(home, path, lambda job: None)
    with Store(home) as store:
        job = store.job("r9").job
        assert (job.tags, job.annotations) == ({"b": "2"}, {"note": "x"})


def test_damaged_edits(home: Home) -> None:
    """They do not keep a record from being saved."""
    run = ("fox", "42", 1.7e9)
    add_edit(home.path, run, "tags", Change(add={"a": "1"}))
    (path,) = (home.path / "edits").iterdir()
    path.write_bytes(b"{")
    assert find_edits(home.path, run) is None
    save_record(home.records, JobRecord(job=Job(id="42", cluster="fox", name="n", user="alice", start=1.7e9)))
