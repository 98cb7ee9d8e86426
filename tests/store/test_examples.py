"""The examples of docs/api.md and docs/store.md, run on a store that `joblens run` has made."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import joblens
from joblens.api import Store
from joblens.core.errors import UsageError
from joblens.store.catalog.listing import COLUMNS, JobFilter
from joblens.store.home import Home
from joblens.store.lake.lake import Lake
from joblens.store.pending import settle_all

from .conftest import run_joblens
from .made import new_home

DOCS = Path(__file__).parent.parent.parent / "docs"
NO_PANDAS = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
NO_PARQUET = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)


@pytest.fixture(scope="module")
def run_store(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """With two jobs that really ran, and whose samples are in the lake."""
    home = new_home(tmp_path_factory.mktemp("run") / "store")
    busy = "x = bytearray(30 << 20); [n for n in range(3_000_000)]"
    for name in ("demo-1", "demo-2"):
        done = run_joblens(
            home,
            "run",
            "--name",
            name,
            "--tag",
            "model:x",
            "--interval",
            "0.1",
            "--",
            sys.executable,
            "-c",
            busy,
        )
        assert done.returncode == 0, done.stderr
    assert settle_all(home, Lake(home.lake)) == []
    return home


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / page).read_text(), re.S)


@pytest.fixture
def names(run_store: Home, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples find when they begin."""
    monkeypatch.setenv("JOBLENS_HOME", str(run_store.path))
    return {"home": str(run_store.path)}


def test_api_page(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Every example runs from top to bottom, and prints what the text says."""
    examples = blocks("api.md", "python")
    assert len(examples) > 6
    for example in examples:
        exec(compile(example, "docs/api.md", "exec"), names)  # noqa: S102 (our own page)
    said = capsys.readouterr().out
    assert "demo-2" in said
    assert names["report"].job.name == "demo-2"
    assert names["series"].times == sorted(names["series"].times)
    assert names["process"].looks >= 1


@NO_PANDAS
def test_api_page_with_pandas(names: dict[str, Any]) -> None:
    """DataFrames have the same figures as the plain data."""
    names["store"] = store = joblens.open()
    for example in blocks("api.md", "python pandas"):
        exec(compile(example, "docs/api.md", "exec"), names)  # noqa: S102 (our own page)
    assert list(names["jobs"]["id"]) == [job["id"] for job in store.jobs()]
    assert str(names["jobs"]["start"].dtype).startswith("datetime64")
    assert (
        list(names["series"]["cpu_seconds"])
        == store.series("last", "job", ("cpu_seconds",)).last["cpu_seconds"]
    )
    assert len(names["processes"]) == len(store.processes("last"))


def test_store_page(names: dict[str, Any], run_store: Home) -> None:
    """The plain DuckDB example finds what the API finds, before and after compaction."""
    for _ in range(2):
        for example in blocks("store.md", "python duckdb"):
            exec(compile(example, "docs/store.md", "exec"), names)  # noqa: S102 (our own page)
        with Store(run_store) as store:
            expected = [
                (
                    job["id"],
                    len(series.times),
                    max(filter(None, series.last["cpu_seconds"])),
                    max(filter(None, series.peak["memory_bytes"])),
                )
                for job in sorted(store.jobs(), key=lambda job: str(job["id"]))
                for series in [store.series(job.id, points=10**9)]
            ]
            assert names["rows"] == expected
            store.compact()


@NO_PANDAS
@NO_PARQUET
def test_store_page_with_pandas(names: dict[str, Any]) -> None:
    """The files can be read without DuckDB too."""
    for kind in ("python duckdb", "python pandas"):
        for example in blocks("store.md", kind):
            exec(compile(example, "docs/store.md", "exec"), names)  # noqa: S102 (our own page)
    assert len(names["frame"]) == sum(row[1] for row in names["rows"])


def test_pages_name_what_there_is() -> None:
    """Columns and filters of the page are those of the code."""
    text = (DOCS / "api.md").read_text()
    for name in (*COLUMNS, *JobFilter._fields):
        assert f"`{name}`" in text, name


def test_without_pandas(run_store: Home) -> None:
    """One clear sentence says what is missing; everything else works."""
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "import joblens\n"
        "store = joblens.open()\n"
        "assert store.jobs()\n"
        "frames = (store.jobs_frame, store.series_frame, store.processes_frame)\n"
        "for frame, words in zip(frames, ([], ['last'], ['last'])):\n"
        "    try:\n        frame(*words)\n"
        "    except ImportError as error:\n        print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"JOBLENS_HOME": str(run_store.path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == 3 * "DataFrames need pandas, which is not installed: pip install pandas\n"


def test_plain_data(run_store: Home) -> None:
    """All that the API gives can be written as JSON."""
    with Store(run_store) as store:
        everything = [
            store.jobs(),
            store.job("last").to_dict(),
            store.series("last"),
            [process.to_dict() for process in store.processes("last")],
            store.info(),
        ]
    assert json.loads(json.dumps(everything))


def test_every_set_can_be_read(run_store: Home) -> None:
    """Of each set that a run has sampled there is a series; of one that it has not there is none."""
    sets = {path.name.removeprefix("set=") for path in run_store.lake.iterdir()}
    assert {"job", "process", "cpu", "memory"} <= sets
    with Store(run_store) as store:
        for name in sets:
            assert store.series("last", name).times, name
        for set_name, columns in (("nonsense", ()), ("job", ("nonsense",))):
            with pytest.raises(UsageError, match="there is no"):
                store.series("last", set_name, columns)
        assert store.problems == []
