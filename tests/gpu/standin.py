"""Stand-ins of NVIDIA's library and program: built with the C compiler, answering as a file says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from programs import need

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
GIB, MIB = 1 << 30, 1 << 20
PATIENCE = 60.0


def build(folder: Path, *flags: str) -> Path:
    """The folder for LD_LIBRARY_PATH."""
    compiler = need("gcc")
    folder.mkdir(parents=True, exist_ok=True)
    shape = ["-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(folder / LIBRARY)]
    strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *strict, *flags, *shape, str(SOURCE)], check=True)
    return folder


def uuid(card: int) -> str:
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


def card(number: int, **fields: Any) -> dict[str, Any]:
    """A card that does nothing, and what else is to be said of it: None takes a line away."""
    lines = {
        "uuid": uuid(number),
        "name": "NVIDIA H100 80GB HBM3",
        "bus": f"00000000:{0x18 + number:02X}:00.0",
        "minor": number,
        "busy": "0 0",
        "memory": f"{80 * GIB} {600 * MIB} {3 * MIB}",
        "power": 70_500,
        "limit": 700_000,
        "energy": 1_000_000 + number,
        "clock": 345,
        "memory_clock": 2619,
        "temperature": 31,
        "reasons": 1,
        **{name.replace("__", "."): value for name, value in fields.items()},
    }
    return {f"{number}.{name}": value for name, value in lines.items()}


def cards(count: int) -> dict[str, Any]:
    return {"count": count, **{key: value for n in range(count) for key, value in card(n).items()}}


def halves() -> dict[str, Any]:
    """A card in two parts."""
    parts = {
        f"0.{part}.{name}": value
        for part in range(2)
        for name, value in (
            ("uuid", f"MIG-0000000{part}-0000-0000-0000-000000000000"),
            ("name", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
            ("memory", f"{40 * GIB} 0 0"),
        )
    }
    return {**cards(1), "0.mig": 1, "0.busy": None, **parts}


class Driver:
    """The file that configures the stand-in's answers. It is replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def says(self, *parts: dict[str, Any]) -> None:
        """A value that is a list is one line for each."""
        lines = []
        for key, value in {key: value for part in parts for key, value in part.items()}.items():
            values = value if isinstance(value, list) else [] if value is None else [value]
            lines += [f"{key} {it}\n" for it in values]
        new = self.path.with_suffix(".new")
        new.write_text("".join(lines))
        new.replace(self.path)

    def is_gone(self) -> None:
        self.says({"driver": "error 9"})


class Reader:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def read(self) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the reader has ended"
        return json.loads(line)

    def sets(self) -> dict[str, list[dict[str, Any]]]:
        found = self.read()
        assert "sets" in found, found
        sets: dict[str, list[dict[str, Any]]] = found["sets"]
        return sets

    def wait_for_all(self) -> None:
        """So many readings that everything is asked for again."""
        for _ in range(10):
            self.read()

    def gpus(self) -> list[dict[str, Any]]:
        return [row for row in self.sets()["gpu"] if row["vendor"] == "nvidia"]


def environment(library: Path | None, state: Path, programs: Path | None = None) -> dict[str, str]:
    path = os.environ.get("PATH", "")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library or ""),
        "JOBLENS_NVML": str(state),
        "PATH": f"{programs}:{path}" if programs else path,
    }


@contextmanager
def reading(env: dict[str, str], **options: Any) -> Iterator[Reader]:
    command = [sys.executable, str(SOURCE.with_name("reader.py")), json.dumps(options)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, text=True, stdin=pipe, stdout=pipe) as process:
        try:
            yield Reader(process)
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode == 0
