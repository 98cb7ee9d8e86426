"""`joblens start`, `stop` and `stage` in scripts of several shells, with and without a batch system."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture.library import library
from joblens.capture.library import build_library, find_library
from joblens.jobs.archive import open_archive
from jobs.archives import make_records

from .sessions import JOBLENS, Place

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    assert find_library() or build_library() == ""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()


def _processes(place: Place, job: str) -> list[dict[str, object]]:
    done = place.script(f"joblens job {job} --processes --limit 0 --json")
    found: list[dict[str, object]] = json.loads(done.out)
    return [it for it in found if it["name"] in ("true", "dash", "sh")]


def test_a_script_from_start_to_submit(place: Place, tmp_path: Path) -> None:
    """All programs between start and stop, none before or after; the environment is as before."""
    done = place.script(
        f"cd {tmp_path}; env | sort >before",
        "/bin/true before",
        'eval "$(joblens start --name mine --tag exp:7)"',
        "export JOBLENS_PROCESS_TAGS=op:a; /bin/true one",
        "export PAPIEX_TAGS=op:c JOBLENS_PROCESS_TAGS=op:b; /bin/true two & wait",
        "/bin/sh -c 'kill -9 $$'",
        "unset JOBLENS_PROCESS_TAGS; /bin/true three",
        "unset PAPIEX_TAGS",
        'eval "$(joblens stop --exit-code 3)"',
        "/bin/true after; env | grep -v ^JOBLENS_SESSION= | sort >after",
        f"joblens stage --to {tmp_path}",
        "cmp before after",
        f"joblens submit {tmp_path}",
    )
    assert (done.code, done.err) == (0, "Killed\n"), done
    archive, result = done.out.splitlines()
    assert result.startswith("1 archive stored: ")
    assert stat.S_IMODE(os.stat(archive).st_mode) == 0o600
    assert list((place.home / "capture").iterdir()) == []
    found = _processes(place, "last")
    ran = sorted((str(it["command"]), it["tags"], it["exit_code"]) for it in found)
    assert ran == [
        ("/bin/sh -c kill -9 $$", "op:b", None),
        ("/bin/true one", "op:a", 0),
        ("/bin/true three", "op:c", 0),
        ("/bin/true two", "op:b", 0),
    ]
    job = json.loads(place.script("joblens job last --json").out)["job"]
    assert (job["name"], job["tags"], job["exit_code"], job["state"]) == ("mine", {"exp": "7"}, 3, "FAILED")


@pytest.mark.parametrize("shell", ["bash", "tcsh", "fish"])
def test_other_shells(place: Place, tmp_path: Path, shell: str) -> None:
    """Each gets code in its own language, by the name of the process that calls joblens."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    lines = {
        "bash": ['eval "$(joblens start)"', "/bin/true x", 'eval "$(joblens stop)"'],
        "tcsh": ['eval "`joblens start`"', "/bin/true x", 'eval "`joblens stop`"'],
        "fish": ["joblens start | source", "/bin/true x", "joblens stop | source"],
    }[shell]
    script = tmp_path / "script"
    text = "\n".join([*lines, f"joblens stage --to {tmp_path}", "env"]) + "\n"
    script.write_text(text.replace("joblens ", f"{JOBLENS} "))
    done = place.script(f"{program} {script}")
    assert done.err == "", done
    archive, *variables = done.out.splitlines()
    assert not [line for line in variables if line.startswith(("LD_PRELOAD=", "JOBLENS_CAPTURE="))]
    place.script(f"joblens submit {archive}")
    assert [it["command"] for it in _processes(place, "last")] == ["/bin/true x"]


def test_what_is_preloaded_stays(place: Place, tmp_path: Path) -> None:
    """Another library in LD_PRELOAD is there before, meanwhile and after."""
    other = library(tmp_path)
    place.env["LD_PRELOAD"] = other
    done = place.script(
        'eval "$(joblens start)"; echo $LD_PRELOAD; eval "$(joblens stop)"; echo $LD_PRELOAD',
    )
    during, after = done.out.splitlines()
    assert during.split(":")[0] == after == other
    assert len(during.split(":")) == 2


def test_several_hosts_of_a_batch_job(place: Place, tmp_path: Path) -> None:
    """The records of each host are collected through the batch system or ssh; a host without any is named."""
    nodes = tmp_path / "nodes"
    nodes.write_text(f"{os.uname().nodename}\nother\nlost\n")
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift 5\ncase $1 in lost) echo "no route to host" >&2; exit 255; esac\n'
                   'exec unshare --user --map-root-user --uts sh -c "hostname $1; $2"\n')  # fmt: skip
    ssh.chmod(0o755)
    place.env.update(
        PBS_JOBID="17.srv", PBS_NODEFILE=str(nodes), JOBLENS_SSH=str(ssh), EPMT_JOB_TAGS="exp:8;fast",
        JOBLENS_CAPTURE_DIR=str(place.tmp), JOBLENS_TAGS="exp:9", PBS_JOBNAME="climate",
    )  # fmt: skip
    (place.tmp / "other.capture").write_bytes(make_records())
    done = place.script(
        'eval "$(joblens start)"',
        "/bin/true; mv $TMPDIR/other.capture $JOBLENS_CAPTURE",
        'eval "$(joblens stop)"',
        f"unset JOBLENS_SESSION; joblens stage --to {tmp_path}",
    )
    assert done.out == f"{tmp_path}/17%2Esrv.joblens\n", done
    assert "joblens: the records of lost may be incomplete: no route to host\n" in done.err
    assert "joblens: no process was captured on lost\n" in done.err
    with open_archive(Path(done.out.strip())) as archive:
        manifest = archive.manifest
        names = [file.node for file in manifest.files]
        assert archive.read_records(names.index("other")) == make_records()
    assert (manifest.job.id, manifest.job.scheduler, manifest.job.name) == ("17.srv", "pbs", "climate")
    assert manifest.job.cluster == "srv"
    assert manifest.tags == {"exp": "9", "fast": "1"}
    assert names == sorted([os.uname().nodename, "other"])
    assert list(place.tmp.iterdir()) == []


def test_tasks_that_start_at_the_same_time_are_one_session(place: Place) -> None:
    """As where each task of a job calls it: all of them write to the same folder."""
    place.env.update(SLURM_JOB_ID="7", SLURM_JOB_NODELIST="c1", JOBLENS_CAPTURE_DIR=str(place.tmp))
    done = place.script("for i in 1 2 3 4; do joblens start --shell sh & done; wait")
    assert len(done.out.splitlines()) == 4, done
    assert len(set(done.out.splitlines())) == 1
    assert len(list(place.tmp.iterdir())) == 1


def test_mistakes_are_sentences(place: Place) -> None:
    """And change nothing in the shell."""
    for command in ("stop", "stage"):
        done = place.script(f"joblens {command}")
        assert done.code == 3
        assert done.err == "joblens: no capture was started here: begin with joblens start\n"
    done = place.script("joblens start --tag x")
    assert (done.code, done.out) == (2, "")
    assert "write name:value" in done.err
