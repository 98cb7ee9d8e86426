"""Output that nobody takes: one sentence or none, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOBLENS = [sys.executable, "-m", "joblens"]
WORDS = [["jobs"], ["job", "last"], ["jobs", "--json"], ["--help"], ["man"], ["completion", "bash"]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With a job, and output that is not written at once: then Python finds at its end that it cannot be."""
    home = tmp_path_factory.mktemp("home")
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    found = {**plain, "JOBLENS_HOME": str(home)}
    subprocess.run([*JOBLENS, "run", "--quiet", "--", "true"], env=found, check=True)
    return found


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_full_disk(words: list[str], environment: dict[str, str]) -> None:
    """It is said in one line, with the code of something outside of joblens."""
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [*JOBLENS, *words], env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (found.returncode, found.stderr) == (3, "joblens: No space left on device\n")


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_nobody_reads(words: list[str], environment: dict[str, str]) -> None:
    """As with `| head`: whoever read has seen enough, and nothing is said."""
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [*JOBLENS, *words], env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, "")


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_closed_output(words: list[str], environment: dict[str, str]) -> None:
    """`joblens jobs >&-`"""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *JOBLENS, *words]
    found = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("width", [50, 60, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_listing_fits_the_screen(width: int, encoding: str, environment: dict[str, str]) -> None:
    """With all of the job's id, whatever else has to give way, and with all columns where there is room."""
    command = ["sh", "-c", "kill -9 $$"]
    name = "a job with a name of many words, which nobody shows whole"
    subprocess.run([*JOBLENS, "run", "--quiet", "--name", name, "--", *command], env=environment, check=False)
    known = {**environment, "COLUMNS": str(width), "PYTHONIOENCODING": encoding}
    text = subprocess.run([*JOBLENS, "jobs"], env=known, capture_output=True, check=True).stdout
    head, *lines = text.decode(encoding).splitlines()
    assert max(map(len, [head, *lines])) <= width
    ids = {path.name.partition(".")[0] for path in Path(environment["JOBLENS_HOME"]).glob("records/*/*.json")}
    assert {line.split()[0] for line in lines} == ids
    assert any(line.endswith("FAILED SIGKILL") for line in lines)
    assert ("memory" in head) == (width >= 80)
