"""Record what a released version writes: a store, a hub's folder, an agent's spool, a session of user mode.

    git worktree add --detach /tmp/released COMMIT && make -C /tmp/released install
    sudo python3 tests/compat/make.py /tmp/released tests/compat/COMMIT

It runs in namespaces of its own: the node is c1, its boot ID and its users are made up, and nothing of the
machine that records (names, paths, other processes, disks) gets into the files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ALICE = 1000
HOME = Path("/home/alice")
STORE = HOME / "store"
PYTHON = ["/opt/joblens/.venv/bin/python", "-m", "joblens"]
BOOT = "11111111-2222-4333-8444-555555555555"
LONG_AGO = 1_700_000_000  # the modification time of all files: whoever wrote them has ended
SETS = '["cpu", "load", "memory", "node", "process", "job", "step", "joblens_collector"]'
KEY = "0123456789abcdef0123456789abcdef"  # of the hub
WAIT_SECONDS = 120.0


# The machine


def enter(released: Path, target: Path) -> None:
    """Start this script again as process 1 of a machine named c1."""
    words = ["unshare", "--uts", "--mount", "--pid", "--net", "--ipc", "--cgroup", "--fork", "--mount-proc"]
    script = [sys.executable, os.path.abspath(__file__), "inside", str(released), str(target)]
    os.execvp(words[0], [*words, *script])  # noqa: S606


def build_machine(released: Path, target: Path) -> None:
    run("hostname", "c1")
    run("ip", "link", "set", "lo", "up")
    for folder in ("/opt", "/home", "/run", "/mnt", "/sys/fs/cgroup"):
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    Path("/opt/joblens").mkdir()
    run("mount", "--bind", str(released), "/opt/joblens")
    share_python((released / ".venv/bin/python").resolve().parent.parent)
    users = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"
    for path, text in {"/etc/passwd": users, "/proc/sys/kernel/random/boot_id": f"{BOOT}\n"}.items():
        made = Path("/mnt") / Path(path).name
        made.write_text(text)
        run("mount", "--bind", str(made), path)
    Path("/mnt/target").mkdir()
    run("mount", "--bind", str(target), "/mnt/target")
    shutil.copy(__file__, "/mnt/make.py")
    HOME.mkdir(mode=0o755)
    os.chown(HOME, ALICE, ALICE)
    os.chdir(HOME)
    os.environ.clear()
    os.environ |= {
        "PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(HOME), "USER": "alice", "TZ": "UTC", "LANG": "C.UTF-8",
        "JOBLENS_HOME": str(STORE), "JOBLENS_CONFIG": os.devnull, "PYTHONPATH": "/opt/joblens/src",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    os.execv(PYTHON[0], [PYTHON[0], "/mnt/make.py", "record"])  # noqa: S606  agents see this line


def share_python(prefix: Path) -> None:
    """With alice, where it is installed below root's home folder."""
    if Path("/root") in prefix.parents:
        kept = Path("/mnt/python")
        kept.mkdir()
        run("mount", "--bind", str(prefix), str(kept))
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/root")
        prefix.mkdir(parents=True)
        run("mount", "--move", str(kept), str(prefix))


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def joblens(*words: str, code: int | None = 0) -> str:
    """As alice. The output."""
    done = subprocess.run(
        [*PYTHON, *words], user=ALICE, group=ALICE, extra_groups=[], stdout=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    assert code is None or done.returncode == code, (words, done)
    return done.stdout


def python(code: str, *arguments: Path, user: int = ALICE) -> str:
    words = [PYTHON[0], "-c", code, *map(str, arguments)]
    return subprocess.run(words, user=user, group=user, check=True, stdout=subprocess.PIPE, text=True).stdout


def start(*words: str, user: int = ALICE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, user=user, group=user, extra_groups=[], start_new_session=True)


def wait_for(what: str, check: Callable[[], Any]) -> Any:
    until = time.monotonic() + WAIT_SECONDS
    while not (found := check()):
        assert time.monotonic() < until, f"{what}: timed out"
        time.sleep(0.05)
    return found


def pids(*words: str) -> list[int]:
    """Of processes whose command line has all of these words."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != "1":
            with suppress(OSError):  # it has ended
                if set(words) <= set((folder / "cmdline").read_text().split("\0")):
                    found.append(int(folder.name))
    return found


def kill_all() -> None:
    """At one moment, like a power cut; then wait for the end of all."""
    os.kill(-1, signal.SIGKILL)

    def all_ended() -> bool:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    wait_for("the end of all processes", all_ended)


# The store


def record_store() -> None:
    """Jobs of `joblens run`, of a hub and of sacct, in each state that a store keeps them in."""
    work = "import time\nend = time.time() + 2.5\nwhile time.time() < end: sum(range(10000))"
    joblens("run", "--quiet", "--name", "spin", "--interval", "0.2", "--", "/usr/bin/python3", "-c", work)
    joblens("run", "--quiet", "--name", "fails", "--", "sh", "-c", "sleep 0.2; exit 3", code=3)
    joblens("run", "--quiet", "--name", "killed", "--", "sh", "-c", "sleep 0.2; kill -9 $$", code=-9)
    said = " ".join(PYTHON)
    marked = (
        f"{said} mark begin; {said} mark start solve; sleep 1; {said} mark stop solve;"
        f" {said} fom bandwidth=12.5GB/s; {said} fom steps=100"
    )
    tags = ("--tag", "project:fusion", "--tag", "code:vlasov")
    joblens("run", "--quiet", "--name", "marked", *tags, "--interval", "0.2", "--", "sh", "-c", marked)
    joblens("db", "compact")
    python(_COMPACT_RECORDS, STORE / "records")
    record_cluster_job()
    joblens("run", "--quiet", "--name", "waits", "--interval", "0.2", "--", "sleep", "0.7")
    start(*PYTHON, "run", "--quiet", "--name", "crashes", "--interval", "0.1", "--", "sleep", "1000")
    wait_for("batches of a job that runs", lambda: list(STORE.glob("incoming/*/*.batch")))
    kill_all()


# As `joblens db compact` does it from the next day on.
_COMPACT_RECORDS = """
import sys
from pathlib import Path
from joblens.store.records import compact_day, list_days
for day, _ in list_days(Path(sys.argv[1])):
    assert compact_day(Path(sys.argv[1]), day) == 4
"""


def record_cluster_job() -> None:
    """Job 42: its samples come through an agent and a hub into the lake, its record from sacct."""
    config = hub_settings(HOME / "hub.toml", HOME / "hub42")
    began = int(time.time())
    start(*PYTHON, "hub", "--config", str(config))
    job = start("/bin/sh", "-c", "while :; do :; done")
    agent_settings(HOME / "agent.toml", HOME / "spool42", job.pid)
    start(*PYTHON, "agent", "--config", str(HOME / "agent.toml"), user=0)
    wait_for("samples in the lake", lambda: len(list(STORE.glob("lake/set=job/*/hub~*.parquet"))) > 1)
    kill_all()
    columns = (
        "JobIDRaw JobID Cluster User UID JobName Partition State ExitCode Submit Start End NodeList AllocCPUS"
    )
    columns += " NNodes TotalCPU MaxRSS TRESUsageInMax AllocTRES Elapsed"
    end = int(time.time())
    values = f"42 42 fox alice 1000 solver batch COMPLETED 0:0 {began - 5} {began} {end} c1 1 1 00:07.5"
    row = [*values.split(), "", "", "cpu=1,mem=1G,node=1", f"00:00:{end - began:02d}"]
    step = [
        "42.batch",
        "42.batch",
        "fox",
        "",
        "",
        "batch",
        "",
        "COMPLETED",
        "0:0",
        *row[9:16],
        "20480K",
        "mem=20480K",
    ]
    rows = [columns.split(), row, [*step, "cpu=1,mem=1G,node=1", row[-1]]]
    (HOME / "sacct.txt").write_text("\n".join("|".join(row) for row in rows) + "\n")
    joblens("import", "sacct", str(HOME / "sacct.txt"))


def hub_settings(path: Path, home: Path, segment: float = 1.0) -> Path:
    home.mkdir(mode=0o700)
    (home / "key").touch(0o600)
    (home / "key").write_text(KEY)
    for made in (home, home / "key"):
        os.chown(made, ALICE, ALICE)
    path.write_text(
        f'[hub]\nlisten = "127.0.0.1:9478"\nhome = "{home}"\nsegment_seconds = {segment}\n'
        f'[hub.sinks.lake]\nhome = "{STORE}"\n'
    )
    return path


def agent_settings(path: Path, spool: Path, pid: int) -> None:
    """Of an agent that takes one process, with all its children, for job 42."""
    jobs = HOME / "jobs"
    jobs.mkdir(exist_ok=True)
    (jobs / "42.json").write_text(
        json.dumps({"id": "42", "uid": ALICE, "cluster": "fox", "node": "c1", "pid": pid})
    )
    token = subprocess.run(
        [*PYTHON, "hub", "token", "c1", "--cluster", "fox", "--config", str(HOME / "hub.toml")],
        capture_output=True, text=True, check=True, user=ALICE, group=ALICE,
    ).stdout  # fmt: skip
    (HOME / "token").touch(0o600)
    (HOME / "token").write_text(token)
    path.write_text(
        f'interval = 0.2\nlisten = "127.0.0.1:0"\ncluster = "fox"\nnode = "c1"\n'
        f'[attribution]\njob_files = "{jobs}"\ninfer = false\n[collectors.processes]\ninterval = 0.2\n'
        f'[push]\nurl = "http://127.0.0.1:9478"\nperiod = 1.0\nsets = {SETS}\nspool = "{spool}"\n'
        f'token_file = "{HOME}/token"\ntimeout = 2.0\n'
    )


# A hub with batches in flight, and the spool of an agent that could not send


def record_hub() -> None:
    """The lake has some segments, others are sealed, the last is open; the agent was killed in between."""
    home, spool = HOME / "hub", HOME / "spool"
    config = hub_settings(HOME / "hub.toml", home)
    start(*PYTHON, "hub", "--config", str(config))
    job = start("/bin/sh", "-c", "while :; do :; done")
    agent_settings(HOME / "agent.toml", spool, job.pid)
    agent = start(*PYTHON, "agent", "--config", str(HOME / "agent.toml"), user=0)
    wait_for("segments in the lake", lambda: cursor(home) >= 2)
    (sink,) = pids("joblens.hub.sink", "lake")
    os.kill(sink, signal.SIGSTOP)
    agent.kill()
    agent.wait()
    before = len(list((home / "journal").glob("*")))
    start(*PYTHON, "agent", "--config", str(HOME / "agent.toml"), user=0)
    wait_for("segments behind", lambda: len(list((home / "journal").glob("*"))) >= before + 2)
    (hub,) = pids("hub", str(config))
    os.kill(hub, signal.SIGKILL)
    wait_for("unsent batches", lambda: len(list(spool.glob("*.batch"))) >= 3)
    kill_all()


def cursor(home: Path) -> int:
    try:
        return int(json.loads((home / "cursors/lake.json").read_bytes())["segment"])
    except FileNotFoundError:
        return 0


# A session of user mode


def record_session() -> None:
    """Batches in the agent's spool and in the hub's journal, and all was killed."""
    started = (
        f"{' '.join(PYTHON)} usermode start --interval 0.5 || exit 9; touch {HOME}/up; while :; do :; done"
    )
    start("/bin/sh", "-c", started)
    wait_for("a session", (HOME / "up").exists)
    wait_for("a segment", lambda: list(STORE.glob("usermode/*/hub/journal/*")))
    (hub,) = pids("-m", "joblens", "hub", "--config")
    os.kill(hub, signal.SIGSTOP)
    wait_for("unsent batches", lambda: list(STORE.glob("usermode/*/hosts/*/spool/*.batch")))
    kill_all()


# What the released version says


def expected_jobs() -> dict[str, Any]:
    """The output of `joblens jobs --json`, and of `joblens job --json` for each."""
    listed = json.loads(joblens("jobs", "--json"))
    jobs = {job["id"]: json.loads(joblens("job", job["id"], "--json")) for job in listed}
    assert len(jobs) == len(listed)
    return {"listed": listed, "jobs": jobs}


def expected_rows() -> Any:
    """Rows by set and moment in lake, journal and spool together, and the batches that the lake lacks."""
    return json.loads(python(_COUNT_ROWS, HOME, STORE, user=0))


_COUNT_ROWS = """
import json, sys
from collections import Counter
from pathlib import Path
import duckdb
from joblens.agent.batch import decode
from joblens.hub.cursors import read_cursor
from joblens.hub.damage import survey

home, store = map(Path, sys.argv[1:])
rows, batches = Counter(), {"journal": [], "spool": []}

def count(where, data):
    header, samples = decode(data)
    batches[where].append([header["boot"], header["sequence"]])
    for sample in samples:
        rows[f"{sample.rows.schema.set} {sample.time_ns}"] += len(sample.rows.keys)

done = read_cursor(home / "hub", "lake")
for path in sorted((home / "hub/journal").iterdir()):
    if int(path.stem) > done:
        data = path.read_bytes()
        for at, head in survey(data, [], unsealed=path.suffix == ".log").sound:
            count("journal", data[at + head.size : at + head.whole])
for path in sorted((home / "spool").glob("*.batch")):
    count("spool", path.read_bytes())
for folder in (store / "lake").iterdir():
    query = f"SELECT epoch_ns(time) AS t, count(*) FROM '{folder}/*/*.parquet' GROUP BY t"
    for moment, number in duckdb.sql(query).fetchall():
        rows[f"{folder.name.removeprefix('set=')} {moment}"] += number
assert batches["journal"] and batches["spool"]
print(json.dumps({"rows": rows, "batches": batches}))
"""


def save(name: str, folders: dict[str, Path], target: Path, expect: Callable[[], Any]) -> None:
    """The folders as they are now, and what the released version then says about them."""
    with tarfile.open(target / f"{name}.tar.xz", "w:xz") as archive:
        for inside, folder in folders.items():
            archive.add(folder, inside, filter=plain)
        said = json.dumps(expect()).encode()
        member = plain(tarfile.TarInfo("expected.json"))
        member.size = len(said)
        archive.addfile(member, io.BytesIO(said))


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = LONG_AGO
    return member


def forget(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def record(target: Path) -> None:
    record_store()
    save("store", {"store": STORE}, target, expected_jobs)
    forget(STORE)
    record_hub()
    folders = {"hub": HOME / "hub", "spool": HOME / "spool", "store": STORE}
    save("hub", folders, target, expected_rows)
    forget(STORE)
    record_session()
    save("session", {"store": STORE}, target, lambda: [joblens("usermode", "stop"), expected_jobs()][1])


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        record(Path("/mnt/target"))
    elif sys.argv[1] == "inside":
        build_machine(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        enter(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
