"""Import and queries of EPMT's own archives, beside EPMT 5.0.1 with SQLite in an environment of its own.

JOBLENS_SHARED names the folder with the archives. EPMT is installed into `.run/epmt` if it is not there.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple, Sequence

from bench.children import ROOT, BenchError, Usage, WrongError, environment, run_usage
from bench.interpreters import Interpreter
from bench.peers import size_of
from bench.run import joblens
from bench.submit import PEAK
from bench.table import Line, Section, at_most, compare

_VERSION = "5.0.1"
_ENVIRONMENT = ROOT / ".run" / "epmt"
_ARCHIVES = "series-kernel"  # four kernel builds
_PROCESSES = 42_400
# One job of which the memory of EPMT grows: this archive, with its processes three times.
_LARGE, _TIMES, _LARGE_PROCESSES = "v1wide-2587724.tgz", 3, 106_491
_ZONE = "Asia/Kolkata"
_FASTER, _SMALLER, _MOST_BYTES = 20, 10, 150.0
_ROUNDS = 1
_IMPORTS = 3  # of joblens in a round
_QUERYABLE, _TREE_NAME, _OPERATIONS_NAME, _OUTLIERS_NAME, _DELETE_NAME = (
    "until queryable", "tree of 10,600 processes", "operations", "outliers of operations", "delete",
)  # fmt: skip
# The slow queries of EPMT, which take more than a second.
_SLOW = (_TREE_NAME, _OPERATIONS_NAME, _OUTLIERS_NAME, _DELETE_NAME)
_INSTALL_SECONDS = 900
# The database that EPMT uses is in a module of its package.
_SETTINGS = """import os
epmt_settings_kind = "user"
db_params = {"url": "sqlite:///" + os.environ["EPMT_BENCH_DATABASE"], "echo": False}
logfile = os.environ["EPMT_BENCH_DATABASE"] + ".log"
def test_settings_import(): pass
"""
_QUERY = "import epmt.epmt_query as eq, epmt.epmt_outliers as eo; jobs = eq.get_jobs(fmt='terse'); "
_POST_PROCESS = "eq.post_process_jobs(jobs)"
_TREE = "eq.compute_process_trees(jobs[{}:{}])"  # of one job: the second time it is there already
_OPERATIONS = "eq.get_ops(jobs[:1], tags=eq.job_proc_tags(jobs[:1]), fmt='pandas')"


class _Store(NamedTuple):
    """Where one of both keeps its data in this round."""

    home: str
    database: str


class _Epmt:
    def __init__(self, python: Interpreter) -> None:
        self._python = str(_ENVIRONMENT / "bin" / "python")
        if not Path(self._python).exists():
            _install(python.path)
        ask = [self._python, "-c", "import epmt; print(epmt.__path__[0])"]
        path = subprocess.run(ask, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
        Path(path, "settings.py").write_text(_SETTINGS)

    def command(self, *words: str) -> list[str]:
        return [self._python, str(_ENVIRONMENT / "bin" / "epmt"), *words]

    def query(self, code: str) -> list[str]:
        return [self._python, "-c", _QUERY + code]


def _install(python: str) -> None:
    print(f"bench: installing epmt {_VERSION} …", file=sys.stderr, flush=True)
    pip = [str(_ENVIRONMENT / "bin" / "pip"), "install", "--quiet", f"epmt=={_VERSION}"]
    try:
        for words in ([python, "-m", "venv", str(_ENVIRONMENT)], pip):
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
        raise BenchError(f"EPMT cannot be installed: {''.join(said):.200}") from None


def measure_epmt(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0]
    shared = Path(os.environ.get("JOBLENS_SHARED", ""))
    archives = sorted((shared / "data" / "epmt" / _ARCHIVES).glob("*.tgz"))
    if not archives:
        raise BenchError("EPMT's archives are not on this machine: JOBLENS_SHARED names their folder")
    epmt, paths = _Epmt(python), [str(path) for path in archives]
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    ours_wall: list[float] = []
    theirs_wall: list[float] = []
    sizes = [0.0, 0.0]
    peaks: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        for number in range(_ROUNDS):
            print(f"bench: epmt {number + 1}", file=sys.stderr, flush=True)
            store = _Store(f"{name}/home{number}", f"{name}/epmt{number}.sqlite")
            imported = joblens(python, "import", "epmt", "--zone", _ZONE, *paths)
            submitted = epmt.command("submit", *paths)
            usages = [run(imported, store)]
            usages += [run(imported, store._replace(home=f"{name}/again{it}")) for it in range(_IMPORTS - 1)]
            for usage in usages:
                ours_wall.append(usage.wall)
                _note(ours, _QUERYABLE, usage)
            both = run(submitted, store), run(epmt.query(_POST_PROCESS), store)
            theirs_wall.append(sum(it.wall for it in both))
            _note(theirs, _QUERYABLE, *both)
            sizes = [size_of(Path(store.home, "lake")), Path(store.database).stat().st_size]
            _check(python, store)
            for what, mine, other in _queries(python, epmt, archives):
                _note(ours, what, run(mine, store))
                _note(theirs, what, run(other, store))
        large = _make_large(shared / "data" / "epmt" / _LARGE, Path(name, "large.tgz"))
        again = _Store(f"{name}/large", f"{name}/large.sqlite")
        imported, submitted = joblens(python, "import", "epmt", large), epmt.command("submit", large)
        for found, words in zip(peaks, (imported, submitted)):
            found.append(_peak(words, again))
    # Its rate, with as many processes as each takes by default.
    rate = compare(
        f"{_QUERYABLE}, wall", python.label, ours_wall, _as_often(theirs_wall, ours_wall), most=1 / _FASTER
    )
    return [_section(python.label, rate, ours, theirs, sizes, peaks)]


def _as_often(found: list[float], others: list[float]) -> list[float]:
    """Repeat measurements of what is measured less often."""
    return [it for it in found for _ in range(len(others) // len(found))]


def _make_large(source: Path, target: Path) -> str:
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            file = old.extractfile(member)
            if file is None:
                continue
            data = file.read()
            if "papiex" in member.name:
                head, newline, rows = data.partition(b"\n")
                data = head + newline + _TIMES * rows
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    return str(target)


def _queries(
    python: Interpreter, epmt: _Epmt, archives: Sequence[Path]
) -> list[tuple[str, list[str], list[str]]]:
    """Return what is asked, with the commands of both, in an order in which each finds its data."""
    first, last = archives[0].stem, archives[-1].stem
    tree = ("job", first, "--tree", "--json", "--limit", "0")
    outliers = ("outliers", "--tag", "exp_name:linux_kernel", "--of", "operations")
    return [
        ("list", joblens(python, "jobs"), epmt.command("list", "jobs")),
        (
            _TREE_NAME,
            joblens(python, "job", first, "--tree"),
            epmt.query(_TREE.format(0, 1)),
        ),
        ("the same, printed by joblens as JSON", joblens(python, *tree), epmt.query(_TREE.format(1, 2))),
        (_OPERATIONS_NAME, joblens(python, "job", first, "--operations"), epmt.query(_OPERATIONS)),
        (_OUTLIERS_NAME, joblens(python, *outliers), epmt.query("eo.detect_outlier_ops(jobs)")),
        (_DELETE_NAME, joblens(python, "delete", "--yes", last), epmt.command("delete", last)),
    ]


def run(words: list[str], store: _Store) -> Usage:
    return run_usage(words, **_variables(store))


def _variables(store: _Store) -> dict[str, str]:
    return {"JOBLENS_HOME": store.home, "EPMT_BENCH_DATABASE": store.database, "EPMT_TZ": _ZONE}


def _note(found: dict[str, list[float]], what: str, *usages: Usage) -> None:
    found.setdefault(what, []).append(sum(it.cpu for it in usages))


def _check(python: Interpreter, store: _Store) -> None:
    """Both have all processes: else one of them has done less."""
    env = {**environment(), **_variables(store)}
    words = joblens(python, "jobs", "--json", "--limit", "0")
    listed = json.loads(subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout)
    count = sum(it["processes"] for it in listed)
    with sqlite3.connect(store.database) as database:
        (there,) = database.execute("SELECT count(*) FROM processes").fetchone()
    if (count, there) != (_PROCESSES, _PROCESSES):
        raise WrongError(f"joblens has {count:,} processes and EPMT {there:,} of {_PROCESSES:,}")


def _peak(words: list[str], store: _Store) -> float:
    env = {**environment(), **_variables(store)}
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _section(
    label: str,
    rate: Line,
    ours: dict[str, list[float]],
    theirs: dict[str, list[float]],
    sizes: list[float],
    peaks: list[list[float]],
) -> Section:
    most = sorted(peaks[1])[len(peaks[1]) // 2] / _SMALLER
    lines = [rate]
    for what, found in ours.items():
        goal = 1 / _FASTER if what in _SLOW else None
        lines.append(compare(f"{what}, CPU", label, found, _as_often(theirs[what], found), most=goal))
    lines += [
        at_most(
            f"import of a job of {_LARGE_PROCESSES:,}, memory", label, "bytes", peaks[0], beside=peaks[1],
            most=most,
        ),
        at_most(
            "stored, each process", label, "bytes", [sizes[0] / _PROCESSES], beside=[sizes[1] / _PROCESSES],
            most=_MOST_BYTES,
        ),
    ]  # fmt: skip
    title = f"import of {_PROCESSES:,} processes in four archives, beside EPMT {_VERSION} with SQLite, "
    return Section(title + f"whole processes, {_ROUNDS} rounds", lines)
