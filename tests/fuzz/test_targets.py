"""The fuzz targets themselves: each runs, and none of the parsers of outside data is missing."""

from __future__ import annotations

import ast
import cProfile
import resource
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import CodeType

import pytest

from . import engine
from .target import Target
from .targets import TARGETS

SOURCE = Path(__file__).parents[2] / "src" / "joblens"
INPUTS = 40  # of each target, beside those to begin with
SEED = 7
PARSERS = ("parse", "decode", "unpack")
READERS = ("read", "load")  # these are also methods that read again what is known, so only functions count
# What is named so and needs no target, with why.
EXCLUDED = {
    "cli.parser._Parser.parse_known_args": "the words of the own command line, which argparse parses",
    "cli.grammar.read_grammar": "reads joblens' own commands",
    "cli.slurm_check._load_settings": "as the agent's settings, in the target `toml`",
    "usermode.cluster_capture._load_job": "written by the prolog of root; as in the target `job-file`",
    "cli.usermode._load": "as the record of any job, in the target `record`",
    "cli.agent._load": "the command line on top of settings, which the target `toml` reads",
    "collectors.process.native_scan.read_row": "what the C library has written, where there is one",
    "capture.native_rows.read_rows": "run by the target `capture-file`, where there is a C library",
    "collectors.gpu.smi._Smi._parse": "the program's words, which the target `nvidia-smi` reads",
    "collectors.gpu.nvml.load_nvml": "loads NVIDIA's library",
    "hub.kafka.client.load_kafka": "loads Kafka's library",
    "store.catalog.postgresql.connection.load_driver": "loads psycopg",
    "store.catalog.postgresql.access.load_all": "rows of a database, each as in the target `record`",
    "store.copying._load_all": "as the records of any store, in the target `record`",
    "hub.sink.read_task": "written by the hub itself for a process that it starts",
    "hub.server.load_tls": "OpenSSL reads the certificate",
    "cli.source.load_chosen": "as the record of any job, in the target `record`",
    "analysis.segments.parse_segments": "names in tags; tests/analysis/test_segments.py has any of them",
    "analysis.segments._parse_date": "the same",
    "analysis.segments.parse_step": "words of the command line",
    "api.comparing.load_named": "as the record of any job, in the target `record`",
    "api.comparing.load_chosen": "the same",
    "api.comparing.load_filtered": "the same",
    "cli.source.load_named": "as the record of any job, in the target `record`",
    "jobs.submit._read": "records of an archive, which the targets of capture read",
    "jobs.running._load": "as any job on its way, in the target `incoming`",
    "store.edit.parse_pairs": "words of the command line",
    "machine_recording._read_all": "runs the collectors, each of which has a target",
    "cli.run._load": "loads joblens' own modules",
    "run.usage.read_before": "reads files of /proc that `inherited-usage` and `cgroup-limits` read",
    "run.sampler._read_inherited": "what the supervisor sends, files of /proc as they are",
    "run.sampler._read_pid": "what the supervisor sends",
    "run.usage._read_own": "reads a file of /proc, and does not parse it",
    "run.usage.read_inherited": "the same",
    "run.usage.read_io": "reads /proc/self/io with parse_own_io",
    "run.usage.read_own_peak": "reads a number that this process has written",
}


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGVTALRM, engine._stop)
    yield
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("name", TARGETS)
def test_smoke(name: str) -> None:
    """Only errors of joblens' own, for inputs that are always the same. `make fuzz` tries many more."""
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    for data in islice(engine.mutations(target, SEED), len(seeds) + INPUTS):
        failure = engine.check(target, data)
        assert failure is None, f"{failure.what} with {data!r:.500}\n{failure.trace}"


def test_a_failure_is_found_and_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign errors, too much time and too much memory are failures; an error of joblens is none."""
    monkeypatch.setattr(engine, "SECONDS", 0.2)

    def run(data: bytes) -> None:
        if b"loop" in data:
            while True:
                pass
        if b"fill" in data:  # more than this process ever had
            pages = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 4 + (200 << 8)
            bytearray(pages << 12)[::4096] = b"x" * pages
        b"x" in data and int(data)

    target = Target("made", run, lambda: [b"1"])
    assert engine.check(target, b"1") is None
    book = engine.Book(tmp_path, target)
    book.check(b"1" * 100 + b"x" + b"2" * 100)
    (path,) = (it for it in tmp_path.iterdir() if it.suffix == "")
    assert path.read_bytes() == b"x"
    for word, what, seconds in ((b"loop", "too slow", 0.2), (b"fill", "too much memory", 60.0)):
        monkeypatch.setattr(engine, "SECONDS", seconds)
        failure = engine.check(target, word)
        assert failure is not None
        assert failure.what.startswith(what)
    assert engine.check(target._replace(raises=(ValueError,)), b"x") is None


def functions(path: Path) -> Iterator[str]:
    """Those that are named as readers of something, with their classes."""

    def below(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = (*names, child.name)
                wanted = (*PARSERS, *(() if names else READERS))
                if not isinstance(child, ast.ClassDef) and child.name.lstrip("_").split("_")[0] in wanted:
                    yield ".".join(inner)
                yield from below(child, inner)

    module = str(path.relative_to(SOURCE).with_suffix("")).replace("/", ".")
    return (f"{module}.{name}" for name in below(ast.parse(path.read_text()), ()))


def reached(run: Callable[[], object]) -> set[str]:
    """The functions of joblens that are called meanwhile."""
    profile = cProfile.Profile(builtins=False)
    profile.runcall(run)
    codes = [it.code for it in profile.getstats() if isinstance(it.code, CodeType)]
    found = set()
    for code in codes:
        path = code.co_filename
        if path.startswith(f"{SOURCE}/"):
            module = path.removeprefix(f"{SOURCE}/").removesuffix(".py").replace("/", ".")
            found.add(f"{module}.{code.co_qualname.replace('<locals>.', '')}")
    return found


def test_every_parser_is_in_the_table() -> None:
    """What is named parse, read, load, decode or unpack is run by some target, or excluded with a reason."""
    known = {name for path in SOURCE.rglob("*.py") for name in functions(path)}
    called: set[str] = set()
    for target in TARGETS.values():
        seeds = target.seeds()
        called |= reached(lambda: [engine.check(target, data) for data in seeds])  # noqa: B023
    missing = known - called - EXCLUDED.keys()
    assert not missing, f"no fuzz target runs {sorted(missing)}"
    assert sorted(EXCLUDED.keys() - known) == [], "excluded, and not there any more"
