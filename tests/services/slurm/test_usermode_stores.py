"""User mode in Slurm with each of its stores: MPI jobs on three nodes, as an ordinary user."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from programs import need
from waiting import wait_for

from .lab import NODES, USERS, Lab
from .machines import SWITCH, Machine, Result
from .user_mode import HEAD, LEFT, UserMode
from .work import compile_ranks, need_perl, wait_for_no_processes

USER, OTHER = "userA", "userB"
SETTINGS = "joblens.toml"
SECONDS, MIB = 2, 60  # of CPU time and memory, for each rank
RESULT = f"3 ranks have {(1 + 2 + 3) * MIB} together\n"
INTERVAL = 1.0
EMBEDDED, PROMETHEUS, VICTORIAMETRICS = "", "prometheus", "victoriametrics"
STORES = (EMBEDDED, PROMETHEUS, VICTORIAMETRICS)
SERVERS = (PROMETHEUS, VICTORIAMETRICS)
PROGRAMS = {PROMETHEUS: "prometheus", VICTORIAMETRICS: "victoria-metrics"}
WORK = f"srun --mpi=pmix $bin/ranks {SECONDS} {MIB}"
SCRIPT = f"""joblens usermode start --interval {INTERVAL:g} {{tsdb}} 2>said.$id
touch up.$id; until [ -e go.$id ]; do sleep 0.1; done
joblens mark start work 2>>said.$id
{WORK}
joblens mark stop work 2>>said.$id
srun --overlap -N1 -n1 -w {HEAD} joblens fom speed=12.5steps/s 2>>said.$id
joblens usermode stop --json >report.$id 2>>said.$id
"""
PAGES = ("/", "/metrics", "/api/v1/query?query=up", "/api/v1/status/config", "/api/v1/export")
# The first line of the answer, or why there is none.
_GET = """use IO::Socket::INET; my ($where, $path) = @ARGV;
my $s = IO::Socket::INET->new(PeerAddr => $where, Timeout => 10) or do { print "$!"; exit };
print $s "GET $path HTTP/1.0\\r\\n\\r\\n"; print scalar <$s>;"""


class Ran(NamedTuple):
    job: str
    output: str
    said: str
    report: Any  # as `stop` told it
    record: Any  # made again, when the job had ended
    session: Any  # while it ran
    closed: dict[str, str]  # what another user was answered while it ran


class Stores:
    """Jobs that differ in their store only, each of which is run when it is first asked for."""

    def __init__(self, lab: Lab, mode: UserMode) -> None:
        self.lab, self.mode = lab, mode
        self._ran: dict[str, Ran] = {}
        self.write(SETTINGS, "")

    def ran(self, store: str) -> Ran:
        if store not in self._ran:
            self._ran[store] = self._run(store)
        return self._ran[store]

    def _run(self, store: str) -> Ran:
        if store in PROGRAMS:
            need(PROGRAMS[store])
        tsdb = f"--tsdb {store}" if store else ""
        job = self.submit(SCRIPT.format(tsdb=tsdb))
        wait_for("hosts", lambda: self._is_up(job))
        session = json.loads((self.mode.folder(USER, job) / "session.json").read_bytes())
        closed = self._knock(job, session)
        self.mode.file(USER, f"go.{job}").touch()
        row = self.lab.wait_for_end(job)[job]
        said = self.mode.file(USER, f"said.{job}").read_text()
        assert (row["State"], row["ExitCode"]) == ("COMPLETED", "0:0"), said
        wait_for_no_processes(self.lab)
        assert not [node for node in self.lab.nodes.values() if list_files(node, session["name"])]
        report = json.loads(self.mode.file(USER, f"report.{job}").read_text())
        record = self.mode.record(USER, job)
        return Ran(job, self.lab.output(USER, job), said, report, record, session, closed)

    def submit(self, script: str) -> str:
        options = ("-N3", "-n3", "--mem=400M", "--time=7")
        return self.mode.submit(USER, f"bin={self.lab.folder}/bin\n{script}", *options)

    def _is_up(self, job: str) -> bool:
        assert self.lab.squeue().get(job) in ("PENDING", "CONFIGURING", "RUNNING"), self.lab.logs()
        return self.mode.file(USER, f"up.{job}").exists()

    def _knock(self, job: str, session: Any) -> dict[str, str]:
        """By another user, at all that listens."""
        found = {}
        for host, page in re.findall(r" (\S+): agent ready at http://\S+:(\d+)/", self.mode.log(USER, job)):
            for at in NODES:
                found[f"{host} from {at}"] = self.get(at, f"{host}:{page}", "/metrics")
        if "server" in session["tsdb"]:
            port = session["tsdb"]["server"]["url"].rpartition(":")[2]
            for path in PAGES:
                found[f"server {path}"] = self.get(HEAD, f"127.0.0.1:{port}", path)
            for at in NODES:
                found[f"server from {at}"] = self.get(at, f"{HEAD}:{port}", "/")
        return found

    def get(self, at: str, where: str, path: str) -> str:
        done = self.lab.nodes[at].run("perl", "-e", _GET, where, path, uid=USERS[OTHER])
        return done.out.strip()

    def from_store(self, job: str, where: str, *words: str) -> Any:
        """The report from elsewhere."""
        return self.from_lake(job, "--store", where, *words)

    def write(self, name: str, text: str) -> None:
        """In the user's home, for the user only."""
        path = self.mode.file(USER, name)
        path.touch(0o600)
        path.write_text(text)
        os.chown(path, USERS[USER], USERS[USER])

    def from_lake(self, job: str, *words: str) -> Any:
        done = self._ask(job, *words)
        assert done.code == 0, done
        return json.loads(done.out)

    def has_samples(self, job: str, where: str, samples: int) -> bool:
        """Whether a server lists all that it has received: it does so a moment later."""
        done = self._ask(job, "--store", where)
        return done.code == 0 and json.loads(done.out)["data"]["samples"] == samples

    def _ask(self, job: str, *words: str) -> Result:
        settings, at = f"{self.lab.folder}/home/{USER}/{SETTINGS}", self.lab.nodes[HEAD]
        return self.mode.joblens(USER, "job", job, "--json", *words, at=at, JOBLENS_CONFIG=settings)

    @contextmanager
    def server(self, machine: Machine, kind: str, where: str, data: str, *more: str) -> Iterator[str]:
        """One that the user starts by hand, as docs/tsdb.md has it. Its URL."""
        pid = self.mode.file(USER, f"{kind}.pid")
        words = {
            PROMETHEUS: (
                "prometheus", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=100y",
                "--config.file=/dev/null", f"--web.listen-address={where}",
            ),
            VICTORIAMETRICS: (
                "victoria-metrics", f"-storageDataPath={data}", "-retentionPeriod=100y",
                f"-httpListenAddr={where}",
            ),
        }[kind]  # fmt: skip
        command = 'echo $$ >"$HOME/$0.pid"; cd "$HOME"; exec "$@"'
        home = f"{self.lab.folder}/home/{USER}"
        process = machine.start(
            self.lab.path("log", f"{kind}.out"),
            "env", f"HOME={home}", "sh", "-c", command, kind, *words, *more,
            uid=USERS[USER],
        )  # fmt: skip
        ready = "/-/ready" if kind == PROMETHEUS else "/health"
        try:
            wait_for(kind, lambda: " 200 " in self.get(HEAD, where, ready))
            yield f"http://{where}"
        finally:
            machine.run("kill", pid.read_text().strip())
            process.wait()


@pytest.fixture(scope="module")
def stores(lab: Lab) -> Iterator[Stores]:
    need_perl()
    with ExitStack() as stack:
        mode = UserMode(lab, stack)
        compile_ranks(lab)
        yield Stores(lab, mode)


def list_files(node: Machine, session: str) -> list[Path]:
    """Of a session, where all users keep theirs."""
    return list(node.path("/tmp").glob(f"joblens-{session}*"))


def assert_alike(one: Any, other: Any, seconds: float = INTERVAL) -> None:
    """Of one job. CPU time of each node within what one core does from one sample to the next; memory, which
    the ranks hold all the while, within what a small program has."""
    assert_nodes_alike(one["nodes"], other["nodes"], seconds)
    for name, most in (("cpu_seconds", len(NODES) * seconds), ("memory_peak_bytes", len(NODES) * 8 << 20)):
        assert one["used"][name] == pytest.approx(other["used"][name], abs=most), name


def assert_nodes_alike(one: list[Any], other: list[Any], seconds: float = INTERVAL) -> None:
    assert [node["node"] for node in one] == [node["node"] for node in other]
    for mine, its in zip(one, other):
        assert mine["cpu_seconds"] == pytest.approx(its["cpu_seconds"], abs=seconds), (mine, its)
        assert mine["memory_peak_bytes"] == pytest.approx(its["memory_peak_bytes"], abs=8 << 20), (mine, its)


def assert_jobs_alike(one: Any, other: Any) -> None:
    """Of two that do the same: each node and each rank. On the first node, where the hub is, and a server in
    one of them, which are in a step of the job, the rank alone is compared."""
    assert one["nodes"][0]["node"] == other["nodes"][0]["node"] == HEAD
    assert_nodes_alike(one["nodes"][1:], other["nodes"][1:])
    mine, its = ranks(one), ranks(other)
    assert_nodes_alike([mine[node] for node in NODES], [its[node] for node in NODES])
    servers = len(NODES) + 1
    assert one["used"]["cpu_seconds"] == pytest.approx(other["used"]["cpu_seconds"], abs=servers * INTERVAL)


def ranks(record: Any) -> dict[str, Any]:
    return {it["node"]: it for it in record["processes"] if it["name"] == "ranks"}


def check_work(record: Any) -> None:
    """Against what the program itself is made to do."""
    found = ranks(record)
    assert sorted(found) == list(NODES)
    for node in record["nodes"]:
        rank = found[node["node"]]
        assert SECONDS - INTERVAL <= rank["cpu_seconds"] <= SECONDS + INTERVAL, rank
        assert rank["memory_peak_bytes"] >= MIB << 20
        assert node["cpu_seconds"] >= rank["cpu_seconds"]
        assert node["memory_peak_bytes"] >= MIB << 20


def check_marks(record: Any) -> None:
    """Of the script, of each rank, and of a step on one node."""
    (work,) = [mark for mark in record["marks"] if mark["text"] == "work"]
    solve = {mark["node"]: mark for mark in record["marks"] if mark["text"] == "solve"}
    assert (work["node"], sorted(solve)) == (HEAD, list(NODES))
    for mark in solve.values():
        assert work["start"] <= mark["start"] < mark["end"] <= work["end"]
    told = {(fom["name"], fom["node"]): (fom["last"], fom["unit"]) for fom in record["foms"]}
    assert told == {
        ("speed", HEAD): (12.5, "steps/s"),
        **{("rank", node): (float(at), "") for at, node in enumerate(NODES)},
    }


def test_three_stores_agree(stores: Stores) -> None:
    """Three jobs that do the same, each with another store: the reports of `stop`, and those made later."""
    embedded, scraped, written = (stores.ran(store) for store in STORES)
    for ran in (embedded, scraped, written):
        assert ran.said == f"joblens: user mode of job {ran.job}: 3 hosts up\n"
        assert ran.record["data"]["problems"] == []
        check_work(ran.record)
        check_marks(ran.record)
    for ran in (scraped, written):
        assert_jobs_alike(embedded.report, ran.report)
        assert_jobs_alike(embedded.record, ran.record)
        assert_jobs_alike(embedded.record, stores.from_store(ran.job, data_of(ran)))


def data_of(ran: Ran) -> str:
    return str(ran.session["tsdb"]["server"]["data"])


def test_output_is_untouched(stores: Stores) -> None:
    """The same program without joblens says the same, to the letter."""
    job = stores.submit(WORK)
    assert stores.lab.wait_for_end(job)[job]["State"] == "COMPLETED"
    alone = stores.lab.output(USER, job)
    assert alone == RESULT
    assert {store: stores.ran(store).output for store in STORES} == dict.fromkeys(STORES, alone)


@pytest.mark.parametrize("kind", SERVERS)
def test_one_job_in_two_stores(stores: Stores, kind: str) -> None:
    """Of its whole time, and of the program's alone, by its mark."""
    ran = stores.ran(kind)
    data = data_of(ran)
    whole = stores.from_store(ran.job, data)
    assert_alike(ran.record, whole, 0.1 if kind == VICTORIAMETRICS else INTERVAL)
    assert whole["used"]["cpu_seconds"] == pytest.approx(ran.record["used"]["cpu_seconds"], abs=0.1)
    assert whole["asked"]["time_seconds"] == 7 * 60
    assert [whole[name] for name in ("job", "steps", "asked")] == [
        ran.record[name] for name in ("job", "steps", "asked")
    ]
    check_work(whole)
    check_marks(whole)
    mine = stores.from_lake(ran.job, "--between", "work")
    its = stores.from_store(ran.job, data, "--between", "work")
    assert_alike(mine, its)
    for one, other in zip(mine["nodes"], its["nodes"]):
        least = (
            one["samples"] // 2 if kind == PROMETHEUS else one["samples"]
        )  # it gives up a scrape after 1 s
        assert least <= other["samples"] <= one["samples"] + 1, (one, other)
    assert ranks(mine).keys() == ranks(its).keys()


@pytest.mark.parametrize("kind", SERVERS)
def test_a_folder_is_read_later(stores: Stores, kind: str) -> None:
    """By a server that the user starts on it, as it is; then by joblens again."""
    ran = stores.ran(kind)
    folder = stores.mode.folder(USER, ran.job)
    assert {path.name for path in folder.iterdir()} == {*LEFT, kind}
    assert {path.name for path in (folder / kind).iterdir()} == {"data", "log"}
    before = stores.from_store(ran.job, data_of(ran))
    with stores.server(stores.lab.nodes[HEAD], kind, "127.0.0.1:9090", data_of(ran)) as url:
        assert told(stores.from_store(ran.job, url)) == told(before)
    assert told(stores.from_store(ran.job, data_of(ran))) == told(before)


def told(record: Any) -> Any:
    return {name: record[name] for name in ("job", "used", "nodes", "marks", "foms")}


@pytest.mark.parametrize("kind", SERVERS)
def test_closed_to_others(stores: Stores, kind: str) -> None:
    """Another user on any node, while the job runs: nobody answers without a secret, and none is seen."""
    ran = stores.ran(kind)
    server, closed = ran.session["tsdb"]["server"], ran.closed
    assert server["url"].startswith("http://127.0.0.1:")
    asked = {name: said for name, said in closed.items() if name.startswith("server /")}
    assert len(asked) == len(PAGES)
    assert all(" 401 " in said for said in asked.values()), asked
    assert {closed[f"server from {node}"] for node in NODES} == {"Connection refused"}
    pages = {name: said for name, said in closed.items() if not name.startswith("server")}
    assert len(pages) == 9
    for name, said in pages.items():
        # Who is scraped by another host has to listen to all; else nobody does.
        assert " 401 " in said if kind == PROMETHEUS else said == "Connection refused", (name, said)
    folder = stores.mode.folder(USER, ran.job)
    for path in (folder, folder / kind, folder / kind / "data"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / kind / "log").stat().st_mode) == 0o600


def test_a_server_that_is_there(stores: Stores) -> None:
    """Where users log in, and with a password: the hub of a job, here by mpirun, writes to it."""
    need(PROGRAMS[VICTORIAMETRICS])
    where = f"{SWITCH}:8428"
    mode, home = stores.mode, f"{stores.lab.folder}/home/{USER}"
    stores.write("secret", "joblens:s3cret\n")
    stores.write(SETTINGS, f'[tsdb]\nurl = "http://{where}"\ntoken_file = "{home}/secret"\n')
    password = ("-httpAuth.username=joblens", "-httpAuth.password=s3cret")
    with stores.server(stores.lab.login, VICTORIAMETRICS, where, f"{home}/vm", *password):
        script = SCRIPT.format(tsdb="--tsdb tsdb").replace("until [ -e go.$id ]", "until true")
        script = script.replace("srun --mpi=pmix", "mpirun")
        job = stores.submit(f"export JOBLENS_CONFIG=$HOME/{SETTINGS}\n{script}")
        assert stores.lab.wait_for_end(job)[job]["State"] == "COMPLETED"
        said = mode.file(USER, f"said.{job}").read_text()
        assert said == f"joblens: user mode of job {job}: 3 hosts up\n"
        assert stores.lab.output(USER, job) == RESULT
        record = mode.record(USER, job)
        assert record["data"]["problems"] == []
        samples = record["data"]["samples"]
        wait_for("all samples", lambda: stores.has_samples(job, "tsdb", samples))
        other = stores.from_store(job, "tsdb")
    assert_alike(record, other, 0.1)
    check_marks(other)
