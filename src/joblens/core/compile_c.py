"""Compile the C parts of joblens when it is installed. Without a compiler it works without them."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from typing import Sequence

_HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCES = (
    "native.c", "process_scan.c", "capture_records.c", "csv_rows.c", "batch_sections.c", "batch_rows.c",
    "words.c",
)  # fmt: skip
NATIVE_SOURCES = [os.path.join(_HERE, name) for name in _SOURCES]
NATIVE = os.path.join(_HERE, "_native.abi3.so")  # for every Python from 3.9 on (PEP 384)
_NATIVE_FLAGS = "-std=gnu11 -O2 -fPIC -shared -s -Wall -Wextra -fvisibility=hidden".split()
_BUILD_SECONDS = 120


def compile_c(sources: Sequence[str], target: str, flags: Sequence[str], compiler: str = "") -> str:
    """Return why it is impossible, or "". The file is replaced atomically."""
    partial = f"{target}.{os.getpid()}"
    command = [compiler or os.environ.get("CC", "cc"), *flags, "-o", partial, *sources]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS)
        if result.returncode == 0:
            os.replace(partial, target)
            return ""
        output = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        return f"{command[0]} failed: {output[0]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} cannot be run: {error}"


def build_native(target: str = NATIVE, compiler: str = "") -> str:
    """Compile readers of counter files, processes, records, CSV and batches: they need Python's headers."""
    headers = f"-I{sysconfig.get_paths()['include']}"
    return compile_c(NATIVE_SOURCES, target, [*_NATIVE_FLAGS, headers], compiler)
