"""The order of the packages, as docs/architecture.md draws it: imports point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "joblens"

# In the order of docs/architecture.md. A package imports from its own row and from those above.
FLOW = (
    ("core", "hooks", "record"),
    ("wire",),
    ("collectors",),
    ("capture",),
    ("schedulers", "attribution"),
    ("agent",),
    ("store",),
    ("importers",),
    ("analysis",),
    ("jobs",),
    ("run", "hub", "usermode"),
    ("reports", "api", "machine_recording"),
    ("serve",),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(FLOW) for name in names}
# What a module may load late and only where it is installed. It goes on without.
OPTIONAL = {"joblens.collectors.gpu.nvml": "pynvml"}
AGENT = (
    "joblens.agent.loop",
    "joblens.wire.batch",
    "joblens.cli.agent",
    "joblens.run.supervise",
    "joblens.run.facts",
)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("joblens", *path.relative_to(SOURCE).with_suffix("").parts)
        yield ".".join(parts).removesuffix(".__init__"), path


MODULES = dict(modules())


def imports(path: Path) -> set[str]:
    """Every module named in an import, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def rank(module: str) -> int:
    parts = module.split(".")
    return RANK[parts[1]] if len(parts) > 1 else -1


def test_imports_point_one_way() -> None:
    """A module imports only from its own row of the flow and from those above it."""
    against = [
        f"{module} imports {imported}"
        for module, path in MODULES.items()
        for imported in imports(path)
        if imported in MODULES and "joblens" not in (imported, module) and rank(imported) > rank(module)
    ]
    assert against == []


def closure(starts: tuple[str, ...]) -> set[str]:
    waiting, found = list(starts), set[str]()
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        if module in MODULES and module != "joblens":  # whose one import is behind joblens.open()
            waiting += [name for name in imports(MODULES[module]) if name in MODULES or "." not in name]
            waiting += [module.rpartition(".")[0]] if "." in module else []
    return found


def test_agent_needs_the_standard_library_only() -> None:
    """Nodes are not ours to fill: what the agent loads is joblens itself and the standard library.

    NVIDIA's binding is the one exception: asked for by one module, inside a function.
    """
    outside = {
        (module, name)
        for module in closure(AGENT) & MODULES.keys()
        for name in imports(MODULES[module])
        if name.split(".")[0] not in (sys.stdlib_module_names | {"joblens"})
    }
    assert outside == set(OPTIONAL.items())


@pytest.mark.parametrize("module", OPTIONAL)
def test_optional_imports_are_late(module: str) -> None:
    """What is not installed everywhere is not imported when the module is."""
    tree = ast.parse(MODULES[module].read_text())
    inside = [
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    ]
    late = {alias.name for node in inside if isinstance(node, ast.Import) for alias in node.names}
    top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert OPTIONAL[module] in late - top


def test_agent_loads_nothing_else_when_it_runs() -> None:
    """The same, seen from a running interpreter that has no site-packages at all."""
    path = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r})"
    code = f"{path}; import joblens.cli.agent, joblens.wire.batch"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_agent_keeps_to_python_39() -> None:
    """Nodes with an older Python can run the agent: checked on the text, whatever runs the tests."""
    files = [str(MODULES[name]) for name in sorted(closure(AGENT)) if name in MODULES]
    assert len(files) > 20
    # toml.py asks for tomllib only where Python is 3.11 or newer.
    vermin = str(Path(sys.executable).parent / "vermin")
    command = [vermin, "--no-tips", "--target=3.9-", "--violations", "--exclude", "tomllib"]
    result = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_nothing_happens_at_import() -> None:
    """Importing any module prints nothing, opens nothing and starts nothing."""
    names = [name for name in MODULES if name != "joblens.__main__"]
    show = "print(os.listdir('/proc/self/fd'), threading.active_count())"
    code = f"import {', '.join(names)}, os, threading; {show}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "['0', '1', '2', '3'] 1\n"
    assert result.stderr == ""
