"""The agent as one file, for nodes on which joblens is not installed.

`python3 FILE agent …` runs it, with any Python from 3.9 on and nothing else. Modules that every agent loads
are also in it as bytecode of this Python: nodes mostly have the same version, and compiling takes longer than
everything else at start. Other versions use the sources.
"""

from __future__ import annotations

import io
import marshal
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

# Everything that the agent loads, also late. A test checks that nothing is missing.
_FOLDERS = ("core", "wire", "collectors", "attribution", "agent")
_MODULES = ("__init__.py", "__main__.py")
_COMMANDS = ("__init__.py", "agent.py", "daemon.py", "parser.py", "settings.py")
_DATE = (1980, 1, 1, 0, 0, 0)  # so that the same code gives the same file
_SHEBANG = b"#!/usr/bin/env python3\n"
_SELDOM = tuple(f"collectors/{name}" for name in ("external/", "gpu/", "energy/", "lustre"))
_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: bytecode with a hash of its source, which is not checked


def pack_agent() -> bytes:
    packed = io.BytesIO(_SHEBANG)
    packed.seek(0, io.SEEK_END)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in sorted(_sources()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), source, zipfile.ZIP_DEFLATED)
            compiled = _compiled(name, source)
            if compiled:
                archive.writestr(zipfile.ZipInfo(name + "c", _DATE), compiled, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """Return bytecode, from __pycache__ if it is there."""
    file = files("joblens.usermode").joinpath("..", "..", name)
    if any(part in name for part in _SELDOM) or not isinstance(file, Path) or not file.is_file():
        return b""
    module = name.removesuffix(".py").replace("/", ".")
    code = SourceFileLoader(module, str(file)).get_code(module)
    return MAGIC_NUMBER + _UNCHECKED + source_hash(source) + marshal.dumps(code)


def _sources() -> Iterator[tuple[str, bytes]]:
    top = files("joblens")
    yield "__main__.py", (top / "__main__.py").read_bytes()
    for name in _MODULES:
        yield f"joblens/{name}", (top / name).read_bytes()
    for folder in _FOLDERS:
        yield from _below(f"joblens/{folder}", top / folder)
    for name in _COMMANDS:
        yield f"joblens/cli/{name}", (top / "cli" / name).read_bytes()


def _below(path: str, folder: Traversable) -> Iterator[tuple[str, bytes]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _below(f"{path}/{file.name}", file)
        elif file.name.endswith(".py"):
            yield f"{path}/{file.name}", file.read_bytes()
