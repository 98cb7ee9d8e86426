"""EPMT's archives: every process and every metric, either format, and nothing that a hostile one asks for."""

from __future__ import annotations

import datetime
import errno
import gzip
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.api.store import Store
from joblens.cli import main
from joblens.core.errors import MalformedError, UsageError
from joblens.core.process import find_live
from joblens.core.secrets import mask_secret, mask_secrets
from joblens.importers.epmt import archive as archives
from joblens.importers.epmt import process_data, totals
from joblens.importers.epmt.metadata import parse_metadata, parse_tags
from joblens.importers.epmt.process_data import read_chunks
from joblens.importers.epmt.totals import Totals
from joblens.jobs import epmt_archives
from joblens.jobs.epmt_archives import EpmtResult, import_epmt
from joblens.jobs.forks import Forks
from joblens.record.ends import EndedProcess, EndedThread
from joblens.record.report import Imported, JobRecord
from joblens.store.end_groups import stored_groups
from joblens.store.home import Home, find_home, make_home
from waiting import wait_for

from .epmt_files import (
    METRICS,
    START,
    STOP,
    csv_text,
    job_files,
    metadata,
    process,
    python2,
    tsv_texts,
    write_folder,
    write_tar,
)

SHARED = Path(os.environ.get("JOBLENS_SHARED", Path(__file__).parents[3] / "shared")) / "data/epmt"
THREADED = process(3, {"usertime": 5}, {"usertime": 7, "rssmax": 900}, exename="ld", tags="op:link")
PROCESSES = [process(1), process(2, ppid=1, args="-DX=1,2 \\n --token abc"), THREADED]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    return make_home(find_home())


def record_of(home: Home, id: str = "4242") -> JobRecord:
    with Store(home) as store:
        return store.job(id)


def imported(record: JobRecord) -> Imported:
    assert isinstance(record.data.imported, Imported)
    return record.data.imported


def ends(home: Home, kind: Any, id: str = "4242") -> list[Any]:
    with Store(home) as store:
        return list(store.ends(id, kind))


@pytest.mark.parametrize("form", ["v1", "v2"])
@pytest.mark.parametrize("packed", [True, False])
def test_every_process_and_thread_is_there(home: Home, tmp_path: Path, form: str, packed: bool) -> None:
    """Totals, tags, annotations, processes and threads of an archive or a folder, in both formats."""
    files = job_files(PROCESSES, form=form)
    path = write_tar(tmp_path / "a.tgz", files) if packed else write_folder(tmp_path / "a", files)
    done = import_epmt(home, [path])
    assert (done.jobs, done.processes, done.threads, done.broken, done.problems) == (1, 3, 4, 0, [])
    record = record_of(home)
    sums = imported(record).sums
    assert set(sums) == set(METRICS) - {"starttime"}
    assert sums["usertime"] == 1000 + 2000 + 5 + 7
    assert sums["rssmax"] == 101 + 102 + 103 + 900
    assert record.used.processes == 3
    assert record.used.cpu_seconds == (3012 + 1 + 2 + 3 + 3) / 1e6
    assert record.used.memory_peak_bytes == 900 * 1024
    assert (record.job.user, record.job.name, record.job.source) == ("alice", "ocean", "epmt")
    assert (record.job.start, record.job.end) == (START.timestamp(), STOP.timestamp())
    assert record.job.tags == {"exp": "a", "seqno": "3"}
    assert record.job.annotations == {"note": "first run", "size": '{"cells": 5}'}
    assert "hidden" not in json.dumps(record.to_dict())
    found = {it.pid: it for it in ends(home, EndedProcess)}
    assert found[1].command == "gcc -c 1.c"
    assert found[2].command == "gcc -DX=1,2 \\n --token ***"
    assert (found[3].user_seconds, found[3].threads, found[3].memory_peak_bytes) == (12e-6, 1, 900 * 1024)
    assert (found[3].exit_code, found[3].signal, found[3].exact) == (0, None, 1)
    assert found[1].ended_seconds - found[1].began_seconds == pytest.approx(2.0)
    threads = ends(home, EndedThread)
    assert sorted((it.pid, it.user_seconds) for it in threads) == [(1, 1e-3), (2, 2e-3), (3, 5e-6), (3, 7e-6)]
    assert {it.tid for it in threads} == ({1, 2, 3, 4} if form == "v1" else {1, 2, 0})


def test_columns_are_found_by_name(home: Home, tmp_path: Path) -> None:
    """Two files of one job with other widths and orders; a comment has the tags, the name has the host."""
    one = csv_text([process(1, tags="", hostname="")], ("usertime", "systemtime"))
    other = csv_text(
        [{**process(2), "threads": [{"PAPI_TOT_INS": 99, "usertime": 5, "systemtime": 6}]}],
        ("PAPI_TOT_INS", "systemtime", "usertime"),
    )  # fmt: skip
    files = {
        "job_metadata": pickle.dumps(metadata()),
        "c7-papiex-1-0.csv": b"# op:old\n" + one.encode(),
        "c1-papiex-2-0.csv": other.encode(),
    }
    done = import_epmt(home, [write_folder(tmp_path / "a", files)])
    assert (done.processes, done.broken) == (2, 0)
    found = {it.pid: it for it in ends(home, EndedProcess)}
    assert (found[1].node, found[1].tags, found[2].node, found[2].tags) == ("c7", "op:old", "c1", "op:build")
    assert imported(record_of(home)).sums == {"usertime": 1005, "systemtime": 7, "PAPI_TOT_INS": 99}


def test_views_of_an_imported_job(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Operations, tree, processes and threads are listed as those of a captured job."""
    assert main(["import", "epmt", str(write_tar(tmp_path / "a.tgz", job_files(PROCESSES)))]) == 0
    assert capsys.readouterr().out == "1 new job, 3 processes, 4 threads\n"
    views: dict[str, list[dict[str, Any]]] = {}
    for name in ("processes", "threads", "operations", "tree"):
        assert main(["job", "4242", f"--{name}", "--json"]) == 0
        views[name] = json.loads(capsys.readouterr().out)
    assert {it["tags"]: it["processes"] for it in views["operations"]} == {"op:build": 2, "op:link": 1}
    assert len(views["threads"]) == 4
    assert [(it["pid"], it["depth"]) for it in views["tree"]] == [(1, 0), (2, 1), (3, 1)]
    assert [it["pid"] for it in views["processes"]] == [2, 1, 3]


def test_python_2_and_zones(home: Home, tmp_path: Path) -> None:
    """Times without a zone are those of --zone; else an offset that the processes leave, or none."""
    local = {"job_pl_start_ts": START + datetime.timedelta(hours=5, minutes=30),
             "job_el_stop_ts": STOP + datetime.timedelta(hours=5, minutes=30)}  # fmt: skip
    plain = {"job_pl_id": "7", "job_pl_env": {"USER": "bob", "EPMT_JOB_TAGS": "exp:b;outlier=1;fast"},
             "job_el_exitcode": 1, **local}  # fmt: skip
    given_zone = write_tar(tmp_path / "z.tgz", job_files(PROCESSES, python2(plain)))
    assert import_epmt(home, [given_zone], zone="Asia/Kolkata").jobs == 1
    record = record_of(home, "7")
    assert record.job.start == START.timestamp()
    assert (record.job.user, record.job.name, record.job.state) == ("bob", "unknown", "FAILED")
    assert record.job.tags == {"exp": "b", "outlier": "1", "fast": "1"}
    assert (imported(record).zone, record.data.problems) == ("Asia/Kolkata", [])
    long = {
        **plain,
        "job_pl_id": "8",
        "job_el_stop_ts": local["job_el_stop_ts"] + datetime.timedelta(hours=3),
    }
    several = write_tar(tmp_path / "s.tgz", job_files(PROCESSES, python2(long)))
    one = write_tar(tmp_path / "o.tgz", job_files(PROCESSES, python2({**plain, "job_pl_id": "9"})))
    assert import_epmt(home, [several, one]).jobs == 2
    guessed = record_of(home, "9")
    assert imported(guessed).zone == "unknown, UTC+05:30 by its processes"
    assert guessed.job.start == START.timestamp()
    assert imported(record_of(home, "8")).zone == "unknown"
    assert guessed.data.problems == [
        "its start and end name no time zone; taken as UTC+05:30, by its processes"
    ]
    assert record_of(home, "8").data.problems == [epmt_archives._UNKNOWN_ZONE]
    with pytest.raises(UsageError, match="no time zone 'Mars'"):
        import_epmt(home, [one], zone="Mars")


def test_a_zone_replaces_a_guess(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive whose zone was not known is imported again with one: once stored, with tags of people."""
    hours = datetime.timedelta(hours=5, minutes=30)
    naive = {"job_pl_start_ts": (START + hours).replace(tzinfo=None), "job_pl_submit_ts": None}
    long = metadata("8", **naive, job_el_stop_ts=(STOP + 2 * hours).replace(tzinfo=None))
    short = metadata("9", **naive, job_el_stop_ts=(STOP + hours).replace(tzinfo=None))
    paths = [
        write_tar(tmp_path / f"{at}.tgz", job_files(PROCESSES, it)) for at, it in enumerate((long, short))
    ]
    assert import_epmt(home, paths).jobs == 2
    with Store(home) as store:
        store.tag("8", {"kept": "yes"})
    capsys.readouterr()
    assert main(["import", "epmt", "--zone", "Asia/Kolkata", *map(str, paths)]) == 0
    assert capsys.readouterr().out == "0 new jobs\n2 jobs replaced, now with a time zone\n"
    for id in ("8", "9"):
        with Store(home) as store:
            assert [it.start for it in store.runs(id)] == [START.timestamp()]
        assert imported(record_of(home, id)).zone == "Asia/Kolkata"
        assert record_of(home, id).data.problems == []
        assert len(ends(home, EndedProcess, id)) == 3
    assert (record_of(home, "8").job.tags or {})["kept"] == "yes"
    again = import_epmt(home, paths, zone="Asia/Kolkata")
    assert (again.jobs, again.replaced, again.known, again.problems) == (0, 0, 2, [])


def test_a_guess_is_replaced_in_two_attempts(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is ended when the old job is deleted: what people have changed is in the new one."""
    naive = metadata(
        "8", job_pl_start_ts=START.replace(tzinfo=None), job_el_stop_ts=STOP.replace(tzinfo=None)
    )
    path = write_tar(tmp_path / "a.tgz", job_files(PROCESSES, naive))
    assert import_epmt(home, [path]).jobs == 1
    with Store(home) as store:
        store.tag("8", {"mine": "yes"})
        store.annotate("8", {"why": "because"})

    def stop(home: Home, record: JobRecord) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(epmt_archives, "save_record", stop)
        import_epmt(home, [path], zone="Asia/Kolkata")
    assert import_epmt(home, [path], zone="Asia/Kolkata").jobs == 1
    job = record_of(home, "8").job
    assert ((job.tags or {})["mine"], (job.annotations or {})["why"]) == ("yes", "because")
    assert len(ends(home, EndedProcess, "8")) == 3


def test_unknown_amounts_are_not_zero(home: Home, tmp_path: Path) -> None:
    """Metrics that an archive does not have are unknown, and an archive without processes says so."""
    files = {
        "job_metadata": pickle.dumps(metadata()),
        "c1-papiex-1-0.csv": csv_text([process(1)], ("rssmax",)).encode(),
    }
    empty = {"job_metadata": pickle.dumps(metadata("5"))}
    paths = [write_tar(tmp_path / "a.tgz", files), write_tar(tmp_path / "b.tgz", empty)]
    assert import_epmt(home, paths).jobs == 2
    for id in ("4242", "5"):
        used = record_of(home, id).used
        assert (used.cpu_seconds, used.cpu_seconds_exact, used.run_delay_seconds) == (None, None, None)
        assert used.cores_mean is None
        assert "is not known" in (record_of(home, id).verdict or "")
    assert [it.cpu_seconds for it in record_of(home).processes] == [None]
    assert "no process data" in [it.rule for it in record_of(home, "5").findings]
    assert main(["job", "5"]) == 0
    assert main(["job", "4242"]) == 0


def test_a_job_of_another_user_is_not_dropped_silently(home: Home, tmp_path: Path) -> None:
    """With the same id, cluster and start it cannot be stored, and a sentence says so."""
    paths = [
        write_tar(tmp_path / f"{user}.tgz", job_files(PROCESSES, metadata(job_pl_username=user)))
        for user in ("alice", "bob")
    ]
    done = import_epmt(home, paths)
    assert (done.jobs, done.known) == (1, 1)
    assert done.problems == [
        f"{paths[1]}: job 4242 of bob is left out: alice has a stored job with its id, cluster and start"
    ]


def test_broken_records_are_findings(home: Home, tmp_path: Path) -> None:
    """What cannot be read is counted with an example; the other processes of the job are there."""
    lines = csv_text([process(1), process(2), THREADED, process(4), process(5)]).splitlines()
    lines[2] = lines[2].replace(",2000,", ",many,")
    lines[5] = lines[5].removesuffix(",3")
    lines += ["," * (lines[0].count(",") - 12) + "1,2"]
    files = job_files([])
    files["c1-collated-papiex-4242-0.csv"] = "\n".join(lines).encode()
    files["c2-papiex.tsv"] = b"{1,2}\t\tc2\tx\n"
    done = import_epmt(home, [write_tar(tmp_path / "a.tgz", files)])
    assert (done.jobs, done.processes, done.unusable) == (1, 3, 0)
    (finding,) = (it for it in record_of(home).findings if it.rule == "broken records")
    assert "could not be read" in finding.evidence
    assert "process 2: 'many' is not a number" in finding.evidence
    assert sorted(it.pid for it in ends(home, EndedProcess)) == [1, 3, 5]
    assert done.broken == 4
    assert len(done.problems) == 1
    assert "a.tgz: 4 records of processes are left out: c1-" in done.problems[0]


def test_a_broken_line_of_v2_is_a_finding(home: Home, tmp_path: Path) -> None:
    """Too few values for its threads, or no number; a newline among the arguments breaks nothing."""
    head, text = tsv_texts([process(1, args="a\nb"), process(2), process(3), process(4, numtids=2)])
    lines = text.splitlines()
    lines[2] = lines[2].replace("{2000,", "{-,", 1)
    lines[3] = lines[3].replace("\t3\t", "\tx\t", 1)
    files = {
        **job_files([]),
        "c1-papiex-header.tsv": head.encode(),
        "c1-papiex.tsv": "\n".join(lines).encode(),
    }
    done = import_epmt(home, [write_tar(tmp_path / "a.tgz", files)])
    assert (done.processes, done.broken) == (2, 2)
    assert {it.pid: it.command for it in ends(home, EndedProcess)} == {1: "gcc a\nb", 4: "gcc -c 4.c"}


def test_odd_processes_are_findings(home: Home, tmp_path: Path) -> None:
    """A stopped counter, a process outside of the job and a missing thread do not refuse the job."""
    early = process(9, start=int(START.timestamp() * 1e6) - 10**10)
    text = csv_text([process(1, {"rdtsc_duration": -5}), early, THREADED]).splitlines()[:-1]
    files = {**job_files([]), "c1-collated-papiex-4242-0.csv": "\n".join(text).encode()}
    assert import_epmt(home, [write_tar(tmp_path / "a.tgz", files)]).jobs == 1
    record = record_of(home)
    rules = {it.rule for it in record.findings}
    assert {"broken cycle counter", "processes outside of the job", "threads missing"} <= rules
    assert record.used.processes == 3


def test_again_changes_nothing(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second import finds every job. One that was stopped before the record is complete, and once."""
    path = write_tar(tmp_path / "a.tgz", job_files(PROCESSES))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(epmt_archives, "save_record", stop)
        import_epmt(home, [path])
    with Store(home) as store:
        store.compact()
    assert import_epmt(home, [path]).jobs == 1
    again = import_epmt(home, [path])
    assert (again.jobs, again.known) == (0, 1)
    with Store(home) as store:
        store.compact()
    assert len(ends(home, EndedProcess)) == 3
    assert len(ends(home, EndedThread)) == 4


def _has_records(home: Home, count: int, running: subprocess.Popen[bytes]) -> bool:
    return len(list(home.records.glob("*/*.json"))) >= count or running.poll() is not None


def test_killed_and_again(home: Home, tmp_path: Path) -> None:
    """kill -9 while archives are imported: then again, and all are there, once."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(12):
        write_tar(folder / f"{number}.tgz", job_files(PROCESSES, metadata(f"{number}")))
    command = [sys.executable, "-m", "joblens", "import", "epmt", str(folder)]
    for count in (1, 4):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            wait_for("a record", partial(_has_records, home, count, running))
            running.send_signal(signal.SIGKILL)
    done = import_epmt(home, [folder])
    assert done.jobs + done.known == 12
    for number in range(12):
        assert sorted(it.pid for it in ends(home, EndedProcess, str(number))) == [1, 2, 3]
        assert record_of(home, str(number)).used.processes == 3
    with Store(home) as store:
        assert len(store.jobs()) == 12


def test_several_at_the_same_time(home: Home, tmp_path: Path) -> None:
    """In processes of their own: what several archives have of one job is stored once, whole, and a damaged
    archive among them is one sentence."""
    for number in range(8):
        write_tar(tmp_path / f"a{number}.tgz", job_files(PROCESSES, metadata(f"{number}")))
        write_tar(tmp_path / f"b{number}.tgz", job_files(PROCESSES[:2], metadata(f"{number}")))
    (tmp_path / "a4.tgz").write_bytes((tmp_path / "a4.tgz").read_bytes()[:-20])
    paths = sorted(map(str, tmp_path.glob("*.tgz")), key=lambda it: it[-5:])
    command = [sys.executable, "-m", "joblens", "import", "epmt", "--workers", "4", "--json", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done
    found = json.loads(done.stdout)
    assert (found["files"], found["jobs"], found["known"], found["unusable"]) == (16, 8, 7, 1)
    assert done.stderr.count("\n") == 1, done.stderr
    assert "a4.tgz: compressed data is damaged or cut off" in done.stderr
    processes = 0
    for number in range(8):
        record = record_of(home, str(number))
        stored = sorted(it.pid for it in ends(home, EndedProcess, str(number)))
        expected = [1, 2, 3] if imported(record).archive == f"a{number}.tgz" else [1, 2]
        assert (stored, record.used.processes) == (expected, len(expected))
        processes += len(stored)
    assert found["processes"] == processes
    assert list(home.incoming.iterdir()) == []


def test_processes_of_the_import_are_killed(home: Home, tmp_path: Path) -> None:
    """What they had is imported without them; they end with that of the command."""
    paths = [tmp_path / f"{number}.tgz" for number in range(30)]
    for number, path in enumerate(paths):
        write_tar(path, job_files(PROCESSES * 300, metadata(f"{number}")))
    command = [sys.executable, "-m", "joblens", "import", "epmt", "--workers", "2", *map(str, paths)]

    def workers(pid: int) -> list[int]:
        return [int(it) for it in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        wait_for("processes", lambda: len(workers(running.pid)) == 2)
        left = workers(running.pid)
        running.send_signal(signal.SIGKILL)
    wait_for("their end", lambda: not any(find_live(pid) for pid in left))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        wait_for("a record", partial(_has_records, home, 1, running))
        for pid in workers(running.pid):
            os.kill(pid, signal.SIGKILL)
        out, said = running.communicate()
    assert (running.returncode, said) == (0, b"")
    assert sum(int(it) for it in re.findall(rb"([0-9]+) (?:new )?jobs?", out)) == 30
    assert len(ends(home, EndedProcess, "29")) == 900
    assert list(home.incoming.iterdir()) == []


def test_no_process_can_be_started(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the limit of a user: the command imports by itself."""
    paths = [write_tar(tmp_path / f"{it}.tgz", job_files(PROCESSES, metadata(f"{it}"))) for it in range(3)]

    def no_fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    monkeypatch.setattr(os, "listdir", lambda path: ["1"])  # as without threads
    done = import_epmt(home, paths, workers=2)
    assert (done.jobs, done.problems) == (3, [])


def test_results_that_are_not_awaited(tmp_path: Path) -> None:
    """As after Ctrl-C while the last result is counted: the process, which waits for a path, is ended."""
    forks = Forks(lambda: str, [tmp_path])
    forks.start(1)
    results = forks.results()
    assert next(results) == str(tmp_path)
    results.close()  # type: ignore[attr-defined]
    forks.end()
    assert not any(process.is_alive() for process in forks._processes)


def test_another_archive_after_a_crash(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an import that was ended nothing is left when an archive with fewer processes of the job comes."""
    monkeypatch.setattr(process_data, "_CHUNK_ROWS", 2)
    many = write_tar(tmp_path / "many.tgz", job_files([process(pid) for pid in range(1, 12)]))
    few = write_tar(tmp_path / "few.tgz", job_files([process(1)]))

    def stop(home: Home, record: JobRecord) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(epmt_archives, "save_record", stop)
        import_epmt(home, [many])
    assert import_epmt(home, [few]).jobs == 1
    assert (
        record_of(home).used.processes == len(ends(home, EndedProcess)) == len(ends(home, EndedThread)) == 1
    )


@pytest.mark.parametrize("chunk", [2, 8192])
def test_groups_in_the_record_are_those_of_the_lake(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Operations and programs are added up as they are imported; the processes in the lake give the same."""
    monkeypatch.setattr(process_data, "_CHUNK_ROWS", chunk)
    many = [
        process(
            pid, *[{"time_waiting": pid * 10**8}] * (pid % 3 + 1), tags=f"op:{pid % 2}", exename=f"p{pid % 4}"
        )
        for pid in range(1, 12)
    ]
    import_epmt(home, [write_tar(tmp_path / "a.tgz", job_files(many, metadata("a")))])
    with Store(home) as store:
        record = store.job("a")
        for by, count in ((("tags",), 2), (("name",), 4)):
            stored = stored_groups(record, by)
            assert stored is not None
            assert [it.key for it in stored] == [it.key for it in store.end_groups(record, by)]
            imported(record).operations = imported(record).programs = None
            for one, other in zip(stored, found := store.end_groups(record, by), strict=True):
                assert one.key == other.key
                assert one[1:] == pytest.approx(other[1:], abs=1e-6)
            assert len(found) == count
            record = store.job("a")


def test_too_many_groups_for_a_record(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from the lake, as are those with a nonsensical amount of memory or end."""
    monkeypatch.setattr(totals, "_MOST", 2)
    many = [process(pid, exename=f"p{pid}") for pid in range(3)]
    huge = [process(1, {"rssmax": 1 << 61}), process(2, end=1 << 60)]
    for id, processes in (("many", many), ("huge", huge)):
        import_epmt(home, [write_tar(tmp_path / f"{id}.tgz", job_files(processes, metadata(id)))])
        with Store(home) as store:
            record = store.job(id)
            assert imported(record).programs is None
            assert sum(it.processes for it in store.end_groups(record, ("name",))) == len(processes)


def test_a_large_archive_is_read_in_parts(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the archive nor its processes need fit into memory."""
    monkeypatch.setattr(archives, "_KEPT", 0)
    monkeypatch.setattr(process_data, "_CHUNK_ROWS", 3)
    monkeypatch.setattr(process_data, "_PIECE", 100)
    many = [process(pid) for pid in range(1, 9)] + [process(9, {}, {}, {}, {}, {}), process(10)]
    local = {"job_pl_start_ts": START.replace(tzinfo=None), "job_el_stop_ts": STOP.replace(tzinfo=None)}
    for form in ("v1", "v2"):
        files = job_files(many, metadata(form, **local), form)
        assert import_epmt(home, [write_tar(tmp_path / f"{form}.tgz", files)]).processes == 10
        assert sorted(it.pid for it in ends(home, EndedProcess, form)) == [*range(1, 11)]
        assert len(ends(home, EndedThread, form)) == 14
        record = record_of(home, form)
        assert (imported(record).threads, imported(record).zone) == (
            14,
            "unknown, UTC+00:00 by its processes",
        )
        assert imported(record).sums["systemtime"] == sum(range(1, 9)) + 5 * 9 + 10


class Execute:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def _link(kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo("c1-papiex-1-0.csv")
    info.type, info.linkname = kind, target
    return info


def _executing(tmp_path: Path) -> dict[str, Any]:
    return job_files(PROCESSES, pickle.dumps(metadata() | {"job_tags": Execute(str(tmp_path / "touched"))}))


def _huge_memo(_: Path) -> dict[str, Any]:
    return job_files(PROCESSES, b"\x80\x02}r\xff\xff\xff\x7f.")


def _nested_key(_: Path) -> dict[str, Any]:
    """A dict whose key is a tuple of 2^40 parts, each level twice the one below."""
    levels = b"".join(b"0h%ch%c\x86q%c" % (n - 1, n - 1, n) for n in range(1, 41))
    return job_files(PROCESSES, b"\x80\x02K\x01\x85q\x00" + levels + b"0}h\x28K\x01s.")


def _encoded(count: int, what: bytes) -> Callable[[Path], dict[str, Any]]:
    """`what`, encoded so many times."""
    call = b"h\x00h\x01\x85R0" * count
    return lambda _: job_files(PROCESSES, b"\x80\x02c_codecs\nencode\nq\x00" + what + b"q\x01" + call + b"N.")


def _repeated_text(_: Path) -> dict[str, Any]:
    text = "x" * (1 << 16)
    return job_files(PROCESSES, metadata(job_pl_env=dict.fromkeys(range(1000), text)))


HOSTILE: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "executes": (_executing, "job_metadata is refused: it names posix.system, which is not data"),
    "changes an object": (
        lambda _: job_files(PROCESSES, b"\x80\x02cdatetime\ndatetime\n}U\x03nowK\x01sb."),
        "job_metadata is refused: it uses an opcode that is not for data",
    ),
    "a key of many parts": (_nested_key, "job_metadata is refused: a tuple is a key of a dict"),
    "encodes a list": (
        _encoded(1, b"]"),
        "job_metadata is refused: it encodes what is not a text",
    ),
    "encodes a text often": (
        _encoded(20, b"X" + (1 << 20).to_bytes(4, "little") + b"x" * (1 << 20)),
        "job_metadata is refused: it encodes the same text too often",
    ),
    "repeats a text": (_repeated_text, "job_metadata is refused: job_pl_env repeats a long text"),
    "leads out": (
        lambda _: {**job_files(PROCESSES), "../../outside": b"x"},
        "member '../../outside' leads out of the archive",
    ),
    "absolute": (
        lambda _: {**job_files(PROCESSES), "/tmp/x": b"x"},
        "member '/tmp/x' leads out of the archive",
    ),
    "symbolic link": (
        lambda _: {**job_files(PROCESSES), "x": _link(tarfile.SYMTYPE, "/etc/passwd")},
        "member 'c1-papiex-1-0.csv' is a link or a device, not a file",
    ),
    "hard link": (
        lambda _: {**job_files(PROCESSES), "x": _link(tarfile.LNKTYPE, "/etc/passwd")},
        "member 'c1-papiex-1-0.csv' is a link or a device, not a file",
    ),
    "no dict": (
        lambda _: job_files(PROCESSES, pickle.dumps([1])),
        "job_metadata is of type list, not a dict",
    ),
    "no id": (lambda _: job_files(PROCESSES, metadata(job_pl_id=[])), "job_metadata has no job id"),
    "garbage": (lambda _: job_files(PROCESSES, b"hello"), "job_metadata is"),
    "empty": (lambda _: {"readme": b""}, "not an archive of EPMT: it has no job_metadata"),
    "twice": (lambda _: {**job_files(PROCESSES), "x/job_metadata": b""}, "job_metadata is in it twice"),
    "no time": (
        lambda _: job_files([], metadata(job_pl_start_ts=5, job_el_stop_ts="x")),
        "neither job_metadata nor a process says when the job started",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(home: Home, tmp_path: Path, name: str) -> None:
    """One sentence, nothing executed or written outside, and the next archive is imported."""
    make, words = HOSTILE[name]
    bad = write_tar(tmp_path / "bad.tgz", make(tmp_path))
    good = write_tar(tmp_path / "good.tgz", job_files(PROCESSES))
    done = import_epmt(home, [bad, good])
    assert (done.jobs, done.unusable) == (1, 1)
    (problem,) = done.problems
    assert problem.startswith(f"{bad}: {words}")
    assert problem.endswith("; archive skipped")
    assert "\n" not in problem
    assert sorted(it.name for it in tmp_path.iterdir()) == ["bad.tgz", "good.tgz", "home"]


def test_a_memo_of_billions_needs_no_memory(home: Home, tmp_path: Path) -> None:
    """An index in a pickle does not allocate as many places; the metadata of it has no id."""
    bad = write_tar(tmp_path / "bad.tgz", _huge_memo(tmp_path))
    assert import_epmt(home, [bad]).problems == [f"{bad}: job_metadata has no job id; archive skipped"]


@pytest.mark.parametrize("first", [True, False])
def test_a_bomb(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """What expands to hundreds of times its size is not read to its end; a large archive of usual data is."""
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    zeros = {"c1-papiex-1-0.csv": b"0" * (64 << 20)}
    files = {**zeros, **job_files(PROCESSES)} if first else {**job_files(PROCESSES), **zeros}
    bad = write_tar(tmp_path / "bad.tgz", files)
    read: list[int] = []
    take = archives._Decompressed.read

    def count(self: archives._Decompressed, size: int) -> bytes:
        read.append(len(data := take(self, size)))
        return data

    monkeypatch.setattr(archives._Decompressed, "read", count)
    words = "it expands to more than 250 times its size, and is not read further; archive skipped"
    done = import_epmt(home, [bad])
    assert done.problems == [f"{bad}: {words}"]
    assert sum(read) < 32 << 20


def test_large_and_usual(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that compresses well is no bomb."""
    monkeypatch.setattr(archives, "_SMALL", 0)
    many = write_tar(tmp_path / "many.tgz", job_files([process(pid) for pid in range(1, 3000)]))
    assert import_epmt(home, [many]).processes == 2999


@pytest.mark.parametrize("zeros", [0, 1000, 200_000])
def test_zeros_between_parts_of_an_archive(zeros: int) -> None:
    """As on a tape: however many there are, what follows is read."""
    first, second = gzip.compress(b"first, "), gzip.compress(b"second")
    stream = archives._Decompressed(Path("a.tgz"), io.BytesIO(first + bytes(zeros) + second + bytes(zeros)))
    assert b"".join(iter(lambda: stream.read(1 << 20), b"")) == b"first, second"


@pytest.mark.parametrize("cut", [0, 1, 100, -4, -20])
def test_truncated_archives(home: Home, tmp_path: Path, cut: int) -> None:
    """A cut archive is skipped as a whole, wherever it was cut."""
    whole = write_tar(tmp_path / "good.tgz", job_files(PROCESSES))
    bad = tmp_path / "bad.tgz"
    bad.write_bytes(whole.read_bytes()[:cut])
    done = import_epmt(home, [bad, whole])
    assert (done.jobs, done.unusable, len(done.problems)) == (1, 1, 1)
    assert str(bad) in done.problems[0]


def test_a_million_columns(home: Home, tmp_path: Path) -> None:
    """Such data are a finding of their job, whose metadata are sound."""
    names = ",".join(f"m{number}" for number in range(1_000_000))
    files = {**job_files([]), "c1-collated-papiex-4242-0.csv": names.encode() + b"\n1,2\n"}
    assert import_epmt(home, [write_tar(tmp_path / "a.tgz", files)]).jobs == 1
    (finding,) = (it for it in record_of(home).findings if it.rule == "broken records")
    assert "1,000,000 columns; at most 4,000 are read" in finding.evidence


def test_a_line_that_is_too_long(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out, and the lines after it are not."""
    monkeypatch.setattr(process_data, "_PIECE", 100)
    monkeypatch.setattr(process_data, "_LONGEST_LINE", 1000)
    files = job_files([process(1), process(2, args="x" * 5000), process(3)])
    done = import_epmt(home, [write_tar(tmp_path / "a.tgz", files)])
    assert (done.processes, done.broken) == (2, 1)


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_long_lines_make_more_chunks(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Rows are collected up to a size, and not only up to a number; no process is lost."""
    monkeypatch.setattr(process_data, "_CHUNK_LETTERS", 5000)
    files = job_files([process(number, args="x" * 1000) for number in range(1, 21)], form=form)
    headers = {"c1": files.pop("c1-papiex-header.tsv", b"")}
    del files["job_metadata"]
    ((name, data),) = files.items()
    chunks = list(read_chunks(iter([(name, "c1", io.BytesIO(data))]), headers, Totals().report))
    assert [len(it.first) for it in chunks] == [5, 5, 5, 5]
    assert [pid for it in chunks for pid in it.numbers["pid"]] == list(range(1, 21))


def test_endless_threads_of_a_process(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those above the limit are left out with a finding; the next process is imported."""
    monkeypatch.setattr(process_data, "_CHUNK_LETTERS", 2000)
    many = process(1, *[{} for _ in range(1000)])
    done = import_epmt(home, [write_tar(tmp_path / "a.tgz", job_files([many, process(2)]))])
    assert (done.jobs, done.processes) == (1, 2)
    assert 10 < done.threads < 500
    (finding,) = (it for it in record_of(home).findings if it.rule == "broken records")
    assert "too many threads of one process" in finding.evidence


def test_newlines_among_arguments_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that continue a process of v2 are collected up to the size of a line."""
    monkeypatch.setattr(process_data, "_LONGEST_LINE", 1000)
    head, text = tsv_texts([process(1, args="x\n" * 5000)])
    wrong: list[str] = []
    data = iter([("c1-papiex.tsv", "c1", io.BytesIO(text.encode()))])
    (chunk,) = read_chunks(data, {"c1": head.encode()}, lambda _, what: wrong.append(what))
    assert len(chunk.texts["args"][0]) <= 1002
    assert set(wrong) == {"a row of 1 cells instead of 16"}


def test_headers_together_are_limited(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is small."""
    monkeypatch.setattr(archives, "_LARGEST_HEADERS", 10_000)
    headers = {f"c{number}-papiex-header.tsv": bytes(1000) for number in range(11)}
    done = import_epmt(home, [write_tar(tmp_path / "a.tgz", {**headers, **job_files(PROCESSES)})])
    assert done.jobs == 0
    assert "its header files are too large; archive skipped" in done.problems[0]


def test_an_archive_that_does_not_fit_into_memory(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, and the next one is imported."""
    paths = [write_tar(tmp_path / f"{id}.tgz", job_files(PROCESSES, metadata(id))) for id in "ab"]

    def fail(where: str, data: bytes) -> Any:
        if where.endswith("a.tgz"):
            raise MemoryError
        return parse_metadata(where, data)

    monkeypatch.setattr(epmt_archives, "parse_metadata", fail)
    done = import_epmt(home, paths)
    assert (done.jobs, done.problems) == (
        1,
        [f"{paths[0]}: its data do not fit into memory; archive skipped"],
    )


def test_kept_files_are_not_added_up_for_each_member(tmp_path: Path) -> None:
    """The import of an archive of 100,000 files took their square; the limit is the sum of their sizes."""

    class Kept(dict[str, bytes]):
        def values(self) -> Any:
            pytest.fail("looks at all files")

    archive = archives.Archive(tmp_path)
    archive.kept = Kept()
    half = bytes(archives._KEPT // 2)
    for number in range(2):
        archives._take(archive, f"c1-papiex-{number}-0.csv", len(half), io.BytesIO(half))
        assert archive.kept is not None
    archives._take(archive, "c1-papiex-2-0.csv", 1, io.BytesIO(b"x"))
    assert archive.kept is None


def test_links_in_a_folder_are_not_followed(home: Home, tmp_path: Path) -> None:
    """A link to a file elsewhere is refused, as is a pipe, which would block."""
    secret = tmp_path / "secret"
    secret.write_bytes(pickle.dumps(metadata()))
    folder = write_folder(tmp_path / "a", {})
    (folder / "job_metadata").symlink_to(secret)
    pipe = write_folder(tmp_path / "b", job_files(PROCESSES))
    os.mkfifo(pipe / "c1-papiex-header.tsv")
    done = import_epmt(home, [folder, pipe])
    assert (done.jobs, done.unusable) == (0, 2)
    assert "a link, which no archive of EPMT has" in done.problems[0]
    assert "not a regular file" in done.problems[1]


def test_no_archive(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without archives, and a file that is not there."""
    assert main(["import", "epmt", str(tmp_path / "home")]) == 3
    assert "no archive of EPMT found" in capsys.readouterr().err
    assert main(["import", "epmt", str(tmp_path / "missing.tgz")]) == 3
    assert "No such file or directory; archive skipped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        ("mysql --password=abc -u x", "mysql --password=*** -u x"),
        ("run --api-key abc --n 5", "run --api-key *** --n 5"),
        ("curl -H 'Authorization: Bearer abc' x", "curl -H 'Authorization: Bearer ***' x"),
        ("git clone https://me:abc@host/x", "git clone https://me:***@host/x"),
        ("X_TOKEN=abc y", "X_TOKEN=*** y"),
        ("tokenizer --tokens 5 --keyboard us", "tokenizer --tokens 5 --keyboard us"),
        ("ls --token --all", "ls --token --all"),
    ],
)
def test_secrets_are_masked(command: str, masked: str) -> None:
    """As capture masks them: values of passwords, tokens and keys, and nothing else."""
    assert mask_secret(command) == masked
    assert mask_secrets(["ls", command]) == ["ls", masked]


@given(st.binary(max_size=300))
def test_metadata_of_any_bytes(data: bytes) -> None:
    """Metadata or one error, and never anything else."""
    for found in (data, b"}(X\x09\x00\x00\x00job_pl_id" + data):
        with suppress(MalformedError):
            assert parse_metadata("x", found).id


@given(st.text(max_size=50) | st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))
def test_tags_of_any_text(value: object) -> None:
    """Names and values are texts, and no name is empty."""
    assert all(name and isinstance(it, str) for name, it in parse_tags(value).items())


@given(
    st.lists(
        st.sampled_from([*csv_text(PROCESSES).splitlines(), "{1}\t", "#x", "\\", ""]) | st.text(max_size=30)
    )
)
def test_process_data_of_any_lines(lines: list[str]) -> None:
    """Each process has its threads, whatever lines are between them; nothing is raised."""
    text = "\n".join([csv_text([]).strip(), *lines]).encode("utf-8", "replace")
    broken: list[str] = []
    chunks = read_chunks(iter([("a.csv", "c1", io.BytesIO(text))]), {}, lambda _, what: broken.append(what))
    for chunk in chunks:
        assert int(chunk.threads.sum()) == len(chunk.metrics["usertime"])
        assert chunk.threads.min() >= 1


needs_data = pytest.mark.skipif(not SHARED.exists(), reason="EPMT's archives are not on this machine")


def _expected() -> list[dict[str, Any]]:
    path = SHARED / "expected.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@needs_data
def test_real_archives(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Totals of every metric are those of an independent reader; `job --json` has processes and CPU time."""
    done: EpmtResult = import_epmt(home, [SHARED], zone="Asia/Kolkata")
    expected = _expected()
    assert (done.jobs, done.broken, done.problems) == (len(expected), 0, [])
    for it in expected:
        assert main(["job", it["jobid"], "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["used"]["processes"] == it["num_procs"]
        assert found["used"]["cpu_seconds"] == it["cpu_time_us"] / 1e6
        assert found["used"]["duration_seconds"] == pytest.approx(it["duration_us"] / 1e6, abs=1e-5)
        assert found["data"]["imported"]["threads"] == it["num_threads"]
        assert found["data"]["imported"]["sums"] == it["sums"]
        assert (found["job"]["user"], found["job"]["name"]) == (it["user"], it["jobname"] or "unknown")
        assert found["job"]["tags"] == parse_tags(it["tags"])
        assert len(ends(home, EndedThread, it["jobid"])) == it["num_threads"]
