"""What the documents say is what the code does."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from joblens.cli import COMMANDS
from joblens.cli.parser import build_parser
from joblens.collectors.table import COLLECTORS
from test_structure import FLOW, SOURCE

TOP = Path(__file__).parent.parent
TEXTS = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").glob("*.md")), TOP / "bench/README.md"]


def test_what_is_generated_is_up_to_date() -> None:
    """docs/metrics.md, the fields in docs/api.md and the commented settings are what `make docs` writes."""
    spec = importlib.util.spec_from_file_location("generate", TOP / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (TOP / "docs" / "metrics.md").read_text() == module.render(), "run `make docs`"
    assert module.SETTINGS.read_text() == module.render_settings(), "run `make docs`"
    assert module.API.read_text() == module.render_api(), "run `make docs`"


def test_readme_is_short() -> None:
    """Command and output on the first screen, and under 120 lines."""
    lines = (TOP / "README.md").read_text().splitlines()
    assert len(lines) < 120
    assert any("joblens run --" in line for line in lines[:24])
    assert {"make run", "make test"} <= {word for line in lines for word in line.split("`")}


def test_every_page_is_in_the_index() -> None:
    """docs/index.md leads to every page by a question."""
    index = (TOP / "docs" / "index.md").read_text()
    missing = [path.name for path in (TOP / "docs").glob("*.md") if f"({path.name}" not in index]
    assert missing == ["index.md"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.name))
def test_links_lead_somewhere(path: Path) -> None:
    """Links to files of the repository, and to headings in them, are not broken."""
    for name, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        target = path.parent / name if name else path
        assert target.exists(), f"{path.name}: {name}"
        assert not heading or heading in anchors(target), f"{path.name}: {name}#{heading}"


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_architecture_shows_the_order_of_the_packages() -> None:
    """The picture has the rows of tests/test_structure.py, the table every package, and all modules exist."""
    text = (TOP / "docs" / "architecture.md").read_text()
    picture = text.split("```")[1].strip().splitlines()
    rows = [re.split(r"\s{2,}", line.strip())[0].split(" · ") for line in picture]
    assert rows == [list(row) for row in FLOW]
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`(\w+)/`", text))
    named = [name for name in re.findall(r"`([\w/]+\.py)`", text) if not name.startswith("tests/")]
    assert named
    assert [name for name in named if not (SOURCE / name).is_file()] == []


def test_every_command_has_help_with_an_example() -> None:
    """`joblens COMMAND --help` says what it does and ends in an example."""
    import sys

    for name, what in COMMANDS:
        text = subprocess.run(
            [sys.executable, "-m", "joblens", name, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert what[1:] in " ".join(text.split())
        assert f"joblens {name}" in text.partition("example:")[2]


def commands(text: str) -> list[list[str]]:
    """Return the `joblens` command lines in blocks of code, without pipes, redirections and comments."""
    found = []
    for kind, block in re.findall(r"^ *```(bash|sh|console)\n(.*?)^ *```", text, re.S | re.M):
        prompt = r"^\$ .*?" if kind == "console" else "^.*?"
        lines = re.findall(prompt + r"\b(?<![/.-])(joblens [a-z].*)", block, re.M)
        found += [
            shlex.split(re.split(r"\s[|><&;]|\)\"?$|;|&&", line)[0], comments=True)[1:] for line in lines
        ]
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.name))
def test_commands_are_accepted(path: Path) -> None:
    """Every joblens command in a block of code has a known name and known options."""
    for words in commands(path.read_text()):
        assert build_parser([words[0]]).parse_args(words).run, words


def test_commands_are_found() -> None:
    """A command is found at a prompt, in a script, in a subshell and before a pipe."""
    text = "```console\n$ joblens ls -v | head  # all\njoblens output\n```\n"
    text += '```bash\nsrun joblens run -- a\n(umask 077; joblens jobs > x)\neval "$(joblens stop)"\n```\n'
    assert commands(text) == [["ls", "-v"], ["run", "--", "a"], ["jobs"], ["stop"]]


# What a page quotes of the output, and the part of it that is a literal in the code.
QUOTED = {
    "delivery.md": ("spool full", "lost from the spool", "the agent was killed", "the node went down"),
    "deploy.md": (
        "responds at",
        "is reachable, at",
        "the hub accepts batches of node",
        "sees only own jobs, of ",
    ),
    "serve.md": ("is valid until", "not found, or not yours", "answers at"),
    "devices.md": (": syntax error: ",),
    "hub.md": ("totals from accounting", "; accounting has"),
    "importing.md": ("bad line", "not ended yet"),
    "quickstart.md": ("joblens up --stop ends all", "may use"),
    "settings.md": (" has this name but is not Slurm's",),
    "store.md": ("The catalog is beside the data.",),
    "usermode.md": ("Prometheus cannot scrape", "user mode of job", "no exact totals"),
}


def test_quoted_output_is_printed() -> None:
    """A message that a page quotes is in the code, in the same words."""
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    for name, texts in QUOTED.items():
        page = " ".join((TOP / "docs" / name).read_text().split())
        for text in texts:
            assert text.strip() in page, f"{name} does not quote {text!r}"
            assert text in source, f"{name} quotes {text!r}, which the code does not print"


def test_settings_example_is_complete() -> None:
    """The commented example in docs/settings.md is read without error and names every setting."""
    from joblens.core.config import AttributionSettings, Settings, parse_settings
    from joblens.core.toml import parse_toml

    (text,) = re.findall(r"```toml\n(.*?)```", (TOP / "docs" / "settings.md").read_text(), re.S)
    known = {collector.name: collector.options for collector in COLLECTORS}
    assert parse_settings(parse_toml(text, "example"), "example", known)
    for name in (*Settings._fields, *AttributionSettings._fields):
        assert re.search(rf"\b{name}\b", text), name


def test_the_collector_in_the_guide_works(tmp_path: Path) -> None:
    """Who copies the example of docs/adding-a-collector.md has a collector."""
    from joblens.core.host import Host

    (code,) = re.findall(r"```python\n(.*?)```", (TOP / "docs" / "adding-a-collector.md").read_text(), re.S)
    found: dict[str, object] = {}
    exec(code, found)  # noqa: S102 (it is our own document)
    path = tmp_path / "proc/sys/kernel/random/entropy_avail"
    path.parent.mkdir(parents=True)
    path.write_text("256\n")
    reading = found["entropy"](Host(str(tmp_path)))  # type: ignore[operator]
    assert reading()[0].values == [256]
