"""Programs that run with the preloaded library, and the records that they leave."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from joblens.capture.library import build_library, capture_environment
from joblens.capture.processes import Merger, ProcessEnd, ThreadEnd
from joblens.capture.records import Damage, Record, parse_records


class Captured(NamedTuple):
    code: int
    output: bytes
    errors: bytes
    records: list[Record]
    processes: list[ProcessEnd]
    threads: list[ThreadEnd]
    damage: Damage

    def named(self, name: str) -> list[ProcessEnd]:
        return [process for process in self.processes if process.name == name]


@cache
def library(folder: Path) -> str:
    """Compile it. The folder is one of the session."""
    target = str(folder / "libjoblens-capture.so")
    assert build_library(target) == ""
    return target


def compile_program(folder: Path, source: str, *flags: str) -> str:
    path = folder / "program.c"
    path.write_text("#define _GNU_SOURCE\n" + source)
    target = str(folder / "program")
    subprocess.run(["cc", "-O1", "-pthread", "-w", "-o", target, str(path), *flags], check=True)
    return target


def run_captured(
    library: str, folder: Path, command: list[str], user: int | None = None, **more: str
) -> Captured:
    """Run a command with the library and return what it left."""
    records = folder / "records"
    records.mkdir(exist_ok=True)
    given = {**os.environb, **{name.encode(): text.encode() for name, text in more.items()}}
    environment = {**given, **capture_environment(given, str(records), library)}
    result = subprocess.run(
        command, env=environment, capture_output=True, check=False, cwd=folder, user=user, group=user
    )
    merger = Merger()
    data = b"".join(path.read_bytes() for path in records.glob("*.capture"))
    found, damage = parse_records(data)
    merger.take(found)
    return Captured(
        result.returncode, result.stdout, result.stderr, found, merger.processes(), merger.threads, damage
    )
