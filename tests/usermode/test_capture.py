"""`joblens start`, `stop` and `stage` in scripts of several shells, with and without a batch system."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture.library import library
from joblens.capture.library import build_library, find_library
from joblens.jobs.archive import open_archive
from joblens.usermode.capture import COLLECT
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
    assert not [it for it in found if "joblens" in str(it["command"])]
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


def _in_pbs(place: Place, *others: str) -> None:
    """Other hosts have names and folders of their own; `lost` cannot be reached while `down` exists."""
    root = place.home.parent
    for host in others:
        (root / host).mkdir()
    (root / "nodes").write_text("\n".join([os.uname().nodename, *others]))
    (root / "ssh").write_text(f"""#!/bin/sh
shift 5
if [ $1 = lost ] && [ -e {root}/down ]; then echo "no route to host" >&2; exit 255; fi
within="hostname $1; mount --bind {root}/$1 {place.tmp}"
exec unshare --user --map-root-user --uts --mount sh -c "$within; $2"
""")
    (root / "ssh").chmod(0o755)
    place.env.update(
        PBS_JOBID="17.srv", PBS_NODEFILE=f"{root}/nodes", JOBLENS_SSH=f"{root}/ssh", PBS_JOBNAME="climate",
        JOBLENS_CAPTURE_DIR=str(place.tmp),
    )  # fmt: skip


def _put_records(place: Place, host: str, records: bytes) -> None:
    """As the library does on that host."""
    state = json.loads(next((place.home / "capture").glob("*/session.json")).read_bytes())
    folder = place.home.parent / host / os.path.basename(state["records"])
    folder.mkdir(exist_ok=True)
    (folder / f"{host}.capture").write_bytes(records)


def _records(path: str) -> dict[str, bytes]:
    with open_archive(Path(path)) as archive:
        return {it.node: archive.read_records(n) for n, it in enumerate(archive.manifest.files)}


def test_several_hosts_of_a_batch_job(place: Place, tmp_path: Path) -> None:
    """The records of each host are collected through the batch system or ssh; a host without any is named."""
    _in_pbs(place, "other", "idle")
    place.env.update(EPMT_JOB_TAGS="exp:8;fast", JOBLENS_TAGS="exp:9")
    place.script('eval "$(joblens start)"; /bin/true; eval "$(joblens stop)"')
    _put_records(place, "other", make_records())
    done = place.script(f"joblens stage --to {tmp_path}")
    assert done.out == f"{tmp_path}/17%2Esrv.joblens\n", done
    assert done.err == "joblens: no process was captured on idle\n"
    with open_archive(Path(done.out.strip())) as archive:
        manifest = archive.manifest
    records = _records(done.out.strip())
    assert records.keys() == {os.uname().nodename, "other"}
    assert records["other"] == make_records()
    assert (manifest.job.id, manifest.job.scheduler, manifest.job.name) == ("17.srv", "pbs", "climate")
    assert manifest.job.cluster == "srv"
    assert manifest.tags == {"exp": "9", "fast": "1"}
    for folder in (place.tmp, tmp_path / "other", place.home / "capture"):
        assert list(folder.iterdir()) == []


def test_what_was_not_collected_is_staged_again(place: Place, tmp_path: Path) -> None:
    """A host that cannot be reached, or a copy that fails, loses nothing, of the other hosts neither."""
    _in_pbs(place, "other", "lost")
    place.script('eval "$(joblens start)"; /bin/true; eval "$(joblens stop)"')
    here = os.uname().nodename
    first, later = make_records(), make_records(300)
    for host in ("other", "lost"):
        _put_records(place, host, first)
    (session,) = (place.home / "capture").iterdir()
    (session / f"{here}.capture").mkdir()
    (tmp_path / "down").touch()
    done = place.script(f"joblens stage --to {tmp_path}")
    archive = done.out.strip()
    assert "joblens: the records of this host are not collected: " in done.err, done
    assert "joblens: the records of lost may be incomplete: no route to host\n" in done.err
    assert f"joblens: the session is kept: run joblens stage {session} again" in done.err
    assert _records(archive) == {"other": first}
    place.script(f"joblens submit {archive}")
    (tmp_path / "down").unlink()
    (session / f"{here}.capture").rmdir()
    _put_records(place, "other", later)
    done = place.script(f"joblens stage {session} --to {tmp_path}")
    assert (done.out, done.err) == (f"{archive}\n", "")
    found = _records(archive)
    assert len(found.pop(here)) > 0
    assert found == {"other": first + later, "lost": first}
    place.script(f"joblens submit {archive}")
    nodes = [it["node"] for it in _processes(place, "17.srv")]
    assert (nodes.count("other"), nodes.count("lost")) == (4, 2)
    for folder in (place.tmp, tmp_path / "other", tmp_path / "lost", place.home / "capture"):
        assert list(folder.iterdir()) == []


def test_each_session_of_a_job_has_an_archive(place: Place, tmp_path: Path) -> None:
    """A batch script that is captured and staged twice, or a job of another cluster with the same id."""
    _in_pbs(place)
    for text in ("captured-1", "captured-2"):
        place.script(
            f'eval "$(joblens start)"; /bin/true {text}; eval "$(joblens stop)"',
            f"joblens stage --to {tmp_path}",
        )
    names = ("17%2Esrv.joblens", "17%2Esrv.2.joblens")
    found = [b"".join(_records(str(tmp_path / name)).values()) for name in names]
    assert [(b"captured-1" in it, b"captured-2" in it) for it in found] == [(True, False), (False, True)]


def test_a_job_has_its_own_session(place: Place) -> None:
    """A batch system passes on the variables of the shell that has submitted the job."""
    done = place.script('eval "$(joblens start)"; eval "$(joblens stop)"; echo $JOBLENS_SESSION')
    place.env["JOBLENS_SESSION"] = shell = done.out.strip()
    _in_pbs(place)
    done = place.script('eval "$(joblens start)"; echo $JOBLENS_SESSION')
    job = done.out.strip()
    assert {str(path) for path in (place.home / "capture").iterdir()} == {shell, job}
    assert shell != job


def test_start_again_renames(place: Place) -> None:
    place.script('eval "$(joblens start --name first)"; joblens start; joblens start --name second')
    (path,) = (place.home / "capture").glob("*/session.json")
    assert json.loads(path.read_bytes())["job"]["name"] == "second"


def test_unknown_counters_are_named(place: Place) -> None:
    """The shell captures all the same."""
    done = place.script('export JOBLENS_COUNTERS=cycle; eval "$(joblens start)"; echo "$JOBLENS_CAPTURE"')
    assert done.err.startswith("joblens: JOBLENS_COUNTERS: not counted: cycle; events are "), done
    assert done.out.startswith("/")


def test_a_shell_that_still_captures_is_warned(place: Place, tmp_path: Path) -> None:
    done = place.script(f'eval "$(joblens start)"; joblens stage --to {tmp_path}')
    assert done.err.startswith("joblens: this shell still captures"), done


def _begin(place: Place, **changes: object) -> Path:
    """A session, with changes in its file."""
    place.script("joblens start")
    (folder,) = (place.home / "capture").iterdir()
    state = json.loads((folder / "session.json").read_bytes())
    (folder / "session.json").write_text(json.dumps({**state, **changes}))
    return folder


def test_records_that_are_on_another_host_stay(place: Place, tmp_path: Path) -> None:
    """As where a shared store is seen by the host on which `stage` is called."""
    folder = _begin(place, hosts=["c9"], records=str(tmp_path / "joblens-capture-there"))
    done = place.script(f"joblens stage {folder} --to {tmp_path}")
    assert (done.code, done.out, done.err) == (3, "", "joblens: the records are on c9: stage them there\n")
    assert (folder / "session.json").exists()


def test_only_folders_of_records_are_removed(place: Place, tmp_path: Path) -> None:
    """Whatever a session names: a damaged one is refused."""
    precious = tmp_path / "precious"
    precious.mkdir()
    folder = _begin(place, records=str(precious))
    done = place.script(f"joblens stage {folder} --to {tmp_path}")
    assert (done.code, done.out) == (3, "")
    assert "is not a folder of records" in done.err
    assert precious.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of several users")
@pytest.mark.parametrize("what", ["", "session.json"])
def test_a_session_of_another_user_is_refused(place: Place, tmp_path: Path, what: str) -> None:
    """It would choose which folders are read and removed."""
    precious = tmp_path / "joblens-capture-precious"
    precious.mkdir()
    folder = _begin(place, records=str(precious))
    os.chown(folder / what, 1000, 1000)
    for words in (f"stage {folder} --to {tmp_path}", f"stage --to {tmp_path}", "stop"):
        done = place.script(f"export JOBLENS_SESSION={folder}; joblens {words}")
        assert done.code == 3
        assert done.err == f"joblens: {folder} belongs to another user; only that user can stage it\n"
    assert precious.is_dir()


def _collect(records: Path, target: Path) -> dict[str, bytes]:
    target.mkdir(exist_ok=True)
    subprocess.run(["/bin/sh", "-c", COLLECT, "sh", str(records), str(target)], check=True)
    return {path.name: path.read_bytes() for path in target.iterdir()}


def test_collecting_takes_regular_files_only(tmp_path: Path) -> None:
    """And removes the folder, also one without any; a folder that is a link stays as it is."""
    records, target = tmp_path / "records", tmp_path / "target"
    records.mkdir()
    assert _collect(records, target) == {}
    assert not records.exists()
    records.mkdir()
    (records / "-n.capture").write_bytes(b"x")
    (records / "c1.capture").symlink_to("/etc/hostname")
    (tmp_path / "link").symlink_to(records)
    assert _collect(tmp_path / "link", target) == {}
    (records / "-n.capture").chmod(0o700)  # some are missing
    assert _collect(records, target) == {"-n.capture": b"x"}
    assert stat.S_IMODE((target / "-n.capture").stat().st_mode) == 0o700
    assert not records.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of several users")
@pytest.mark.parametrize("what", ["", "c1.capture"])
def test_records_of_another_user_are_not_collected(tmp_path: Path, what: str) -> None:
    """The name of the folder is seen in /tmp, so another user can create it first on another host."""
    records, target = tmp_path / "records", tmp_path / "target"
    records.mkdir()
    target.mkdir()
    (target / "c1.capture").write_bytes(b"collected")
    (records / "c1.capture").write_bytes(b"forged")
    os.chown(records / what, 1000, 1000)
    assert _collect(records, target) == {"c1.capture": b"collected"}


def test_tasks_that_start_at_the_same_time_are_one_session(place: Place) -> None:
    """As where each task of a job calls it: all of them write to the same folder."""
    place.env.update(SLURM_JOB_ID="7", SLURM_JOB_NODELIST="c1", JOBLENS_CAPTURE_DIR=str(place.tmp))
    done = place.script("for i in 1 2 3 4; do joblens start --shell sh & done; wait")
    assert len(done.out.splitlines()) == 4, done
    assert len(set(done.out.splitlines())) == 1
    assert len(list(place.tmp.iterdir())) == 1


def test_masks_of_archives(place: Place, tmp_path: Path) -> None:
    """What the shell starts is masked before it is written, and further when it is stored."""
    done = place.script(
        'export JOBLENS_MASK=-x; eval "$(joblens start --mask \'ghp_*\')"; echo "$JOBLENS_MASK"',
        "/bin/true -x hunter2 ghp_hunter2 --later more",
        f'eval "$(joblens stop)"; joblens stage --to {tmp_path}',
        f"JOBLENS_MASK=--later joblens submit {tmp_path}",
    )
    assert (done.code, done.err) == (0, ""), done
    assert done.out.startswith("-x ghp_*\n")
    with open_archive(next(tmp_path.glob("*.joblens"))) as archive:
        assert b"hunter2" not in archive.read_records(0)
    assert [it["command"] for it in _processes(place, "last")] == ["/bin/true -x *** ghp_*** --later ***"]


def test_mistakes_are_sentences(place: Place) -> None:
    """And change nothing in the shell."""
    for command in ("stop", "stage"):
        done = place.script(f"joblens {command}")
        assert done.code == 3
        assert done.err == "joblens: no capture was started here: begin with joblens start\n"
    done = place.script("joblens start --tag x")
    assert (done.code, done.out) == (2, "")
    assert "write name:value" in done.err
    done = place.script("joblens start --mask '*'")
    assert (done.code, done.out) == (2, "")
    assert "expected an option such as --license" in done.err
