"""The service killed, restarted, over a store that changes, as a user who can only read it; TLS."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from joblens.api.store import Store
from joblens.hub.server import share_store
from joblens.jobs.live_lists import save_live
from joblens.schedulers.facts import BatchJob
from joblens.store.home import make_home
from services.running import free_port
from small_disk import mounted
from store.made import store_job
from waiting import wait_for

from .serving import (
    ALICE,
    BOB,
    SETTINGS,
    START,
    Served,
    acting_as,
    read,
    serving,
    store_jobs,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")


def test_killed_and_started_again() -> None:
    """A stale socket is replaced, tokens and roles are as before, and the index is not built from nothing."""
    with serving() as served:
        token = served.ask("POST", "/tokens", ALICE).json["token"]
        assert served.stop(signal.SIGKILL) == -signal.SIGKILL
        assert Path(served.socket).exists()
        served.start()
        assert served.get("/me", BOB, Authorization=f"Bearer {token}").json["user"] == ALICE
        assert served.get("/jobs/1", ALICE).status == 200
        assert served.stop() == 0
        assert not Path(served.socket).exists()


def test_not_twice() -> None:
    """A second service on the same socket does not start, and the first goes on."""
    with serving() as served:
        command = [
            sys.executable,
            "-m",
            "joblens",
            "serve",
            "--socket",
            served.socket,
            "--home",
            str(served.home.path),
        ]
        env = {**os.environ, "STATE_DIRECTORY": str(served.top / "other")}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert (done.returncode, "another process listens on" in done.stderr) == (3, True)
        assert served.get("/me").status == 200
        (served.top / "open").mkdir()
        (served.top / "open").chmod(0o777)
        command[5] = str(served.top / "open" / "s")
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert (done.returncode, "could replace the socket" in done.stderr) == (3, True)


TESTS = Path(__file__).parents[1]
# A process of its own: the test acts as several users meanwhile, which changes all threads of a process.
_CHANGE = """
import sys
from joblens.api.store import Store
from joblens.store import records
from serve.serving import BOB, START, make_job
with Store(sys.argv[1]) as store:
    while True:
        store.compact()
        records.save_records(store.home.records, [make_job("x", BOB, START + 100_000)])
"""


def test_a_store_that_changes() -> None:
    """While records and samples are compacted and retained, each answer is whole and of the viewer's jobs."""
    with serving() as served:
        for number in range(6):
            store_job(served.home, f"a{number}", user=ALICE, node="c1", cluster="c1")
            store_job(served.home, f"b{number}", user=BOB, node="c1", cluster="c1")
        wait_for("the jobs", lambda: len(served.get("/jobs?limit=100", ALICE).json["jobs"]) == 7)
        changing = subprocess.Popen([sys.executable, "-c", _CHANGE, str(served.home.path)], cwd=TESTS)
        try:
            for _ in range(30):
                found = served.get("/jobs?limit=100", ALICE).json["jobs"]
                assert sorted(job["id"] for job in found) == ["1", "a0", "a1", "a2", "a3", "a4", "a5"]
                assert served.get("/jobs/a3", ALICE).json["job"]["id"] == "a3"
                series = served.get("/jobs/a3/series?columns=processes,threads", ALICE).json["series"]
                assert [len(it["times"]) for it in series] == [10]
                assert served.get("/jobs/b3/series", ALICE).status == 404
                assert len(served.get("/jobs/a3/processes", ALICE).json["processes"]) >= 1
        finally:
            changing.kill()
            changing.wait()
        with Store(served.home) as store:
            store.retain(1)
        wait_for("the end of old jobs", lambda: served.get("/jobs?limit=100", ALICE).json["jobs"] == [])
        assert served.get("/jobs/a3", ALICE).message == "job a3: not found, or not yours"


def test_series_of_a_job() -> None:
    """Peaks survive the thinning, labels split, and sets of the node are not the user's."""
    with serving() as served:
        store_job(served.home, "a", user=ALICE, node="c1", cluster="c1")
        wait_for("the job", lambda: served.get("/jobs/a", ALICE).status == 200)
        sets = served.get("/jobs/a/sets", ALICE).json["sets"]
        assert {"job", "process"} <= sets.keys()
        (whole,) = served.get("/jobs/a/series?columns=processes,threads", ALICE).json["series"]
        (thin,) = served.get("/jobs/a/series?columns=processes,threads&points=2", ALICE).json["series"]
        assert len(thin["times"]) <= 2 < len(whole["times"])
        assert max(thin["peak"]["threads"]) == max(whole["peak"]["threads"]) == 4
        by = served.get("/jobs/a/series?by=node&columns=threads", ALICE).json["series"]
        assert [it["labels"] for it in by] == [{"node": "c1"}]
        refused = served.get("/jobs/a/series?set=cpu", ALICE)
        assert (refused.status, "there is no set 'cpu'" in refused.message) == (400, True)
        wrong = served.get("/jobs/a/series?columns=thread", ALICE)
        assert (wrong.status, "did you mean threads?" in wrong.message) == (400, True)


def test_two_clusters_with_the_same_id() -> None:
    """The job of another cluster with the same id, at the same time, is not in the series of one's own."""
    with serving() as served:
        for cluster, user in (("owl", BOB), ("elk", ALICE)):
            store_job(served.home, "77", user=user, cluster=cluster, node=f"{cluster}1", source="slurm",
                      nodes=[f"{cluster}1"])  # fmt: skip
        wait_for("the job", lambda: served.get("/jobs/77", ALICE).status == 200)
        for path in (
            "/jobs/77",
            "/jobs/77/processes",
            "/jobs/77/series?by=node",
            "/jobs/77/series?by=cluster",
        ):
            answer = served.get(path, ALICE)
            assert answer.status == 200, answer
            assert b"owl" not in answer.body
        assert served.get("/jobs/77@owl", ALICE).status == 404
        assert served.get("/jobs/77@elk", ALICE).status == 200
        assert [run["cluster"] for run in served.get("/jobs/77", ALICE).json["runs"]] == ["elk"]


def batch_job(id: str, user: str, account: str) -> BatchJob:
    return BatchJob(
        id=id, cluster="fox", scheduler="slurm", name="run", user=user, account=account, state="RUNNING",
        start=START, nodes=("c1",),
    )  # fmt: skip


def test_running_and_pending_jobs() -> None:
    """Jobs that the scheduler reports are shown to their owner, and to nobody else."""
    with serving() as served:
        jobs = [batch_job("51", ALICE, "chemistry"), batch_job("52", BOB, "physics")]
        jobs.append(batch_job("53", BOB, "physics").replace(state="PENDING", start=None, reason="Priority"))
        save_live(served.home, "hub", jobs, time.time())
        seen = {
            user: {job["id"] for job in served.get("/jobs?limit=100", user).json["jobs"]} - {"1", "2", "3"}
            for user in (ALICE, BOB, "bin", "mail")
        }
        assert seen == {ALICE: {"51"}, BOB: {"52"}, "bin": {"52"}, "mail": set()}
        missing = served.get("/jobs/59", ALICE).body
        for id in ("52", "53"):
            assert served.get(f"/jobs/{id}", ALICE).body == missing.replace(b"59", id.encode())
            assert served.get(f"/jobs/{id}/series", ALICE).status == 404
        assert served.get("/jobs/51", ALICE).json["job"]["state"] == "RUNNING"
        assert served.get("/jobs/53", BOB).message == "job 53 waits: PENDING Priority"


def test_the_audit_log_on_a_full_disk(tmp_path: Path) -> None:
    """What cannot be logged is not shown; own jobs are. After a rotation it goes on in the new file."""
    with mounted(tmp_path / "small", 1 << 20) as disk:
        settings = SETTINGS + f'[serve]\naudit_file = "{disk}/audit"\n'
        with serving(settings) as served:
            assert served.get("/jobs/2", "games").status == 200
            with (
                (disk / "filler").open("wb", 0) as filler,
                pytest.raises(OSError, match="No space"),
            ):
                while filler.write(b"x" * 65_536):
                    pass
            for _ in range(40):  # what is left of the last page
                last = served.get("/jobs/2", "games")
            assert (last.status, "the audit log cannot be written" in last.message) == (503, True)
            assert served.get("/jobs/2", BOB).status == 200
            assert served.get("/jobs/1", "games").status == 503
            (disk / "filler").unlink()
            assert served.get("/jobs/2", "games").status == 200
            (disk / "audit").rename(disk / "audit.1")
            assert served.process is not None
            served.process.send_signal(signal.SIGHUP)
            wait_for("the new file", (disk / "audit").exists)
            assert served.get("/jobs/2", "games").status == 200
            assert '"owner":"daemon"' in (disk / "audit").read_text()


def test_without_a_hub() -> None:
    """Live pages say what is missing; all others answer."""
    with serving(SETTINGS + '[serve]\nhub = "http://127.0.0.1:1"\n') as served:
        for path in ("/now", "/sets", "/nodes"):
            answer = served.get(path, ALICE)
            assert (answer.status, "the hub at 127.0.0.1:1 does not answer" in answer.message) == (502, True)
        assert served.get("/jobs/1", ALICE).status == 200


def test_a_user_who_can_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of root that is shared with a group: the service reads it as another user."""
    group, user = grp.getgrnam("games"), pwd.getpwnam("games")
    with serving() as served:
        served.stop()
        monkeypatch.setenv("JOBLENS_HOME", str(served.home.path))
        hub = served.home.path / "hub"
        hub.mkdir(mode=0o700)
        for name in ("key", "lock", "lake.lock"):  # who can read a lock can hold it
            (hub / name).write_text("secret")
            (hub / name).chmod(0o600)
        store_job(served.home, "old", user=ALICE, node="c1", cluster="c1")
        share_store(group.gr_name, hub)
        make_home(served.home)
        store_job(served.home, "new", user=ALICE, node="c1", cluster="c1")
        save_live(served.home, "hub", [batch_job("51", ALICE, "")], time.time())
        served.state.mkdir(exist_ok=True)
        for path in (served.state, *served.state.iterdir(), served.top / "run"):
            shutil.chown(path, user.pw_uid, group.gr_gid)
        for name in ("key", "lock", "lake.lock"):
            assert (hub / name).stat().st_mode & 0o777 == 0o600
        served.user = user.pw_name
        served.start()
        found = served.get("/jobs?limit=100", ALICE).json
        assert {job["id"] for job in found["jobs"]} == {"1", "old", "new", "51"}
        for job in ("old", "new"):
            assert served.get(f"/jobs/{job}/series?columns=threads", ALICE).json["series"][0]["times"]
        assert served.get("/jobs/51", ALICE).status == 200
        assert served.get("/me", "games").json["role"] == "admin"
        assert not (served.home.path / "catalog.sqlite").exists()


def test_tls(tmp_path: Path) -> None:
    """With a certificate TCP accepts TLS only; the Unix socket is as it was."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    words = [
        "openssl",
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-x509",
        "-subj",
        "/CN=localhost",
        "-days",
        "2",
    ]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    settings = SETTINGS + f'[serve]\ncertificate = "{certificate}"\nprivate_key = "{key}"\n'
    with serving(settings, free_port()) as served:
        token = served.ask("POST", "/tokens", ALICE).json["token"]
        context = ssl.create_default_context(cafile=str(certificate))
        connection = HTTPSConnection("localhost", served.port, context=context, timeout=60)
        with acting_as(BOB):
            connection.request("GET", "/api/v1/me", headers={"Authorization": f"Bearer {token}"})
        assert read(connection.getresponse()).json["user"] == ALICE
        connection.close()
        with socket.create_connection(("127.0.0.1", served.port), 60) as plain:
            plain.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" not in plain.recv(1000)


def test_systemd_can_listen(tmp_path: Path) -> None:
    """A socket that systemd passes is used instead of one of its own, and is not removed."""
    import tempfile

    top = Path(tempfile.mkdtemp(prefix="joblens-serve-"))
    top.chmod(0o755)
    served = Served(top)
    store_jobs(served.home)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(served.socket)
            Path(served.socket).chmod(0o666)
            listener.listen(64)
            served.inherited = listener.fileno()
            served.start()
            assert served.get("/me", ALICE).json["user"] == ALICE
            assert served.stop() == 0
            assert Path(served.socket).exists()
    finally:
        shutil.rmtree(top)
