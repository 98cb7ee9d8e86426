"""`joblens job ID --processes` and its like, on a store with captured records."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from capture.made import CRASHED, KILLED, LATER, RECORDS, make_record, store_captured
from joblens.cli import main
from joblens.store.home import find_home
from store.made import START, end_job, new_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store = new_home(tmp_path / "store")
    store_captured(store, "a")
    end_job(store, "plain")
    monkeypatch.setenv("JOBLENS_HOME", str(store.path))
    return store.path


def joblens(*words: str) -> int:
    return main([*words])


@pytest.mark.usefixtures("home")
def test_processes_sorted_limited_and_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    """The one with most CPU time first; what is left out is stated; a filter selects by command."""
    assert joblens("job", "a", "--processes", "--limit", "2") == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["pid", "7", "9"]
    assert out.splitlines()[2].split()[-1] == "1"
    assert err == "joblens: 2 of 3 are listed; --limit 0 lists all\n"
    joblens("job", "a", "--processes", "--filter", "job8", "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["pid"], row["user_seconds"], row["memory_peak_bytes"], row["exact"]) == (8, 2.0, 8192, 1)


def test_the_signal_that_ended_it_has_a_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_captured(find_home(home), "crashed", CRASHED)
    for view in ("--processes", "--tree"):
        assert joblens("job", "crashed", view) == 0
        assert capsys.readouterr().out.split()[-1] == "SIGSEGV"


def test_own_jobs_on_a_site_with_a_service(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service that does not answer is stated, and the lists are of the own store."""
    monkeypatch.delenv("JOBLENS_HOME")
    home.rename(home.parent / "joblens")
    monkeypatch.setenv("XDG_DATA_HOME", str(home.parent))
    monkeypatch.setenv("JOBLENS_SERVER", "/none")
    for view in ("--processes", "--threads", "--operations", "--tree", "--gantt"):
        assert joblens("job", "a", view) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) > 1
        assert (
            err == "joblens: cannot read from /none: there is no such socket; only your own store was read\n"
        )


@pytest.mark.usefixtures("home")
def test_tree_threads_and_operations(capsys: pytest.CaptureFixture[str]) -> None:
    """Each list has the same rows as CSV and as JSON."""
    for view, expected in (("tree", 3), ("gantt", 3), ("threads", 1), ("operations", 2)):
        joblens("job", "a", f"--{view}", "--json")
        plain = json.loads(capsys.readouterr().out)
        joblens("job", "a", f"--{view}", "--csv")
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert (len(plain), len(rows)) == (expected, expected)
        assert list(rows[0]) == list(plain[0])
    joblens("job", "a", "--tree")
    assert [line.split("sh")[0].split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["7"], ["8", "·"], ["9", "·", "·"],
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 200])
def test_gantt_draws_when_each_process_ran(
    home: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar from start to end on the scale of the job: 10 seconds, and from the sixth to the eighth."""
    store_captured(find_home(home), "later", LATER)
    monkeypatch.setenv("COLUMNS", str(width))
    joblens("job", "later", "--gantt")
    head, *lines = capsys.readouterr().out.splitlines()
    axis = head[head.index("0") :]
    assert axis.endswith(" 10 s")
    whole, part = (line[head.index("0") :] for line in lines)
    assert whole == "█" * len(axis)
    assert len(part) == len(axis)
    assert part.index("█") == pytest.approx(0.6 * len(axis), abs=1)
    assert part.count("█") == pytest.approx(0.2 * len(axis), abs=1)
    assert max(map(len, [head, *lines])) <= width


def test_gantt_of_a_process_without_a_start(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of one that was killed at once: it is where it ended, with a line for its end."""
    fields = {"time": int((START + 4) * 1e9), "pid": 7, "start": 7, "child": 19, "status": 9}
    store_captured(find_home(home), "late", RECORDS + make_record("W", **fields))
    joblens("job", "late", "--gantt")
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [(line.split()[0], line.count("─")) for line in lines] == [
        ("7", 0), ("8", 0), ("9", 0), ("19", 1),
    ]  # fmt: skip


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["plain", "--processes"], 1, "job plain has no captured records: it is still running, or "),
        (["a", "--csv"], 2, "--csv needs --processes"),
        (["a", "--tree", "--sort", "cpu"], 2, "--sort does not apply"),
        (["a", "--gantt", "--sort", "cpu"], 2, "--gantt is in order of start"),
        (["a", "--processes", "--limit", "-1"], 2, "--limit is -1"),
        (["missing", "--threads"], 1, "there is no job 'missing'"),
    ],
)
def test_errors_are_sentences(
    words: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot be shown is one sentence with what to do, and nothing on stdout."""
    assert joblens("job", *words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_frame(home: Path) -> None:
    """As a DataFrame, times are timestamps and unknown numbers are NaN."""
    import joblens
    from joblens.record.ends import EndedProcess

    pytest.importorskip("pandas")
    with joblens.open(home) as store:
        frame = store.ends_frame("a", EndedProcess)
        assert list(frame.pid) == [it.pid for it in store.ends("a", EndedProcess)]
        operations = store.operations_frame("a")
    assert list(frame.exit_code) == [0, 0, 1]
    assert frame.signal.isna().all()
    assert (frame.ended_seconds - frame.began_seconds).dt.round("1s").dt.seconds.tolist() == [5, 2, 3]
    assert operations.set_index("tags").processes.to_dict() == {"": 1, "op:a": 2}


def test_unknown_is_not_zero(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of processes that nobody has recorded at their end: `-`, null, an empty cell, NaN; never 0."""
    import joblens
    from joblens.record.ends import EndedProcess

    pandas = pytest.importorskip("pandas")
    killed = store_captured(find_home(home), "killed", KILLED)
    assert [(it.cpu_seconds, it.memory_peak_bytes) for it in killed.processes if it.pid in (17, 18)] == [
        (None, None)
    ] * 2
    assert _tree("killed", capsys) == [["sh", "job17", "-", "CPU", "-"]] * 2
    store_captured(find_home(home), "both", RECORDS + KILLED)
    assert _tree("both", capsys) == [["sh", "job17", "-", "CPU", "-"]] * 2
    main(["job", "killed", "--processes", "--sort", "start"])
    (_, line, _) = capsys.readouterr().out.splitlines()
    assert line.split() == ["17", "sh", "job17", "-", "-", "-", "unknown"]
    main(["job", "killed", "--operations"])
    assert capsys.readouterr().out.splitlines()[1].split()[2:] == ["-"] * 5
    main(["job", "killed", "--processes", "--json"])
    names = ("user_seconds", "system_seconds", "memory_peak_bytes")
    assert [[row[it] for it in names] for row in json.loads(capsys.readouterr().out)] == [[None] * 3] * 2
    main(["job", "killed", "--processes", "--csv"])
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert [[row[it] for it in names] for row in rows] == [[""] * 3] * 2
    with joblens.open(home) as store:
        frame = store.ends_frame("killed", EndedProcess)
        operations = store.operations_frame("killed")
    for found in (frame[list(names)], operations[["cpu_seconds", "summed_wall_seconds", "span_seconds"]]):
        assert all(pandas.api.types.is_float_dtype(it) for it in found.dtypes)
        assert found.isna().all().all()


def _tree(job: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    assert main(["job", job]) == 0
    return [line.split()[-5:] for line in capsys.readouterr().out.splitlines() if "job17" in line]
