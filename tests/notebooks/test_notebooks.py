"""The notebooks of `joblens notebook`: all run, in one kernel, and find what there is to find."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from importers.epmt_files import build_processes, job_files, metadata, write_tar
from joblens.cli.notebook import NOTEBOOKS, copy_notebooks
from waiting import wait_for

NAMES = ("outlier-study", "comparison", "one-job")  # the first imports what the others show


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    return found


def text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_they_are_as_they_should_be() -> None:
    """Without output, and with one cell of parameters each."""
    assert sorted(it.stem for it in NOTEBOOKS.glob("*.ipynb")) == sorted(NAMES)
    for name in NAMES:
        cells = load(name)["cells"]
        assert all(not it.get("outputs") for it in cells)
        assert sum("parameters" in it["metadata"].get("tags", []) for it in cells) == 1


def test_they_are_copied_once(tmp_path: Path) -> None:
    """One that was changed is not overwritten."""
    assert len(copy_notebooks(tmp_path / "a")) == len(NAMES)
    (tmp_path / "a" / "one-job.ipynb").write_text("changed")
    (tmp_path / "a" / "comparison.ipynb").unlink()
    assert [it.name for it in copy_notebooks(tmp_path / "a")] == ["comparison.ipynb"]
    assert (tmp_path / "a" / "one-job.ipynb").read_text() == "changed"


def test_command(tmp_path: Path) -> None:
    """The notebooks are put into the folder; without JupyterLab one sentence says how to get it."""
    (tmp_path / "jupyterlab.py").write_text(
        "import os, sys; print(sys.argv[1:], os.environ['JOBLENS_HOME'])\n"
    )
    words = [sys.executable, "-m", "joblens", "notebook", "nb", "--no-browser", "--home", "store"]
    inside = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=inside, capture_output=True, text=True, check=False)
    assert done.stdout == f"['--no-browser', 'nb'] {tmp_path}/store\n"
    assert len(list((tmp_path / "nb").iterdir())) == len(NAMES)
    hide = "import sys; sys.modules['jupyterlab'] = None; from joblens.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", hide, "notebook", "other"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("pip install 'joblens[notebook]'")) == (3, 1)
    assert not (tmp_path / "other").exists()


@pytest.mark.real
def test_jupyterlab(tmp_path: Path) -> None:
    """A real JupyterLab serves the notebooks, with a kernel that reads the store, and ends when asked to."""
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed: make tools")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "config").mkdir()
    settings = {"ServerApp": {"ip": "127.0.0.1", "port": port, "port_retries": 0, "allow_root": True}}
    (tmp_path / "config/jupyter_server_config.json").write_text(json.dumps(settings))
    folders = {
        name: str(tmp_path / "config") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    }
    inside = {**os.environ, **folders, "HOME": str(tmp_path), "JUPYTER_TOKEN": "secret"}
    words = [sys.executable, "-m", "joblens", "notebook", "nb", "--no-browser", "--home", "store"]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(words, cwd=tmp_path, env=inside, stderr=log)

    def ask(method: str, path: str, word: str = "secret") -> httpx.Response:
        headers = {"Authorization": f"token {word}"}
        return httpx.request(method, f"http://127.0.0.1:{port}/api/{path}", headers=headers, timeout=60)

    def answers() -> bool:
        assert running.poll() is None, (tmp_path / "log").read_text()
        with suppress(httpx.TransportError):
            return ask("GET", "contents").status_code == 200
        return False

    try:
        wait_for("JupyterLab", answers)
        found = ask("GET", "contents").json()["content"]
        assert sorted(it["name"] for it in found) == sorted(f"{name}.ipynb" for name in NAMES)
        assert ask("POST", "kernels").json()["name"] == "python3"
        assert ask("GET", "contents", "wrong").status_code == 403
    finally:
        running.terminate()
        running.wait(60)


@pytest.mark.filterwarnings("default")  # of packages that only run the notebooks
def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From archives to the root cause, then two jobs side by side, then one of them."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: make tools")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: make tools")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: make tools")
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for number, link in enumerate((20, 21, 400, 20)):
        job = metadata(f"run{number}", job_tags={"exp_name": "linux_kernel", "number": str(number)})
        write_tar(tmp_path / f"{number}.tgz", job_files(build_processes(100, link), job))
    archives = [str(it) for it in sorted(tmp_path.glob("*.tgz"))]
    chosen = {"outlier-study": f"ARCHIVES = {archives!r}", "comparison": "JOBS = ['run0', 'run2']",
              "one-job": "JOB = 'run2'"}  # fmt: skip
    cells: list[Any] = []
    for name in NAMES:
        for cell in load(name)["cells"]:
            if cell["cell_type"] == "code":
                more = chosen[name] if "parameters" in cell["metadata"].get("tags", []) else ""
                cells.append(nbformat.v4.new_code_cell(f"{text(cell)}\n{more}"))
        cells.append(nbformat.v4.new_code_cell("%reset -f"))
    whole = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(whole, timeout=300, kernel_name="python3").execute()
    shown = [json.dumps(cell.outputs) for cell in whole.cells]
    cause = next(it for cell, it in zip(whole.cells, shown) if "root_cause" in cell.source)
    assert "op:link" in cause
    assert "run2" in cause
    assert any("What changed first: operation op:link, cpu_seconds" in it for it in shown)
    lines = next(it for cell, it in zip(whole.cells, shown) if '"timelines"' in cell.source)
    assert lines.count('"title": "cores"') == lines.count('"title": "processes"') == 1
    assert any('"temporal"' in it or "no samples of this job" in it for it in shown)
    assert any("ld" in it and "memory_peak_bytes" in it for it in shown[-4:])
