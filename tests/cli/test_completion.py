"""Completion and manual page: made from the parser, and tried in the real shells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from joblens.cli import COMMANDS, completion, man
from joblens.cli.grammar import read_grammar
from programs import need

GRAMMAR = read_grammar()


def test_every_command_is_there() -> None:
    """With its options, as the parser has them."""
    paths = {command.path for command in GRAMMAR}
    assert {(name,) for name, _ in COMMANDS} | {("db", "info"), ("usermode", "start")} <= paths
    (jobs,) = [command for command in GRAMMAR if command.path == ("jobs",)]
    assert {"--since", "--json", "--state"} <= {flag for option in jobs.options for flag in option.flags}


def shell(name: str, *arguments: str) -> str:
    need(name)
    found = subprocess.run([name, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


LINES = [
    ("joblens ", {"run", "jobs", "job", "db"}),
    ("joblens jo", {"jobs", "job"}),
    ("joblens db ", {"info", "compact", "retain"}),
    ("joblens jobs --st", {"--state"}),
    ("joblens jobs --state CAN", {"CANCELLED"}),
    ("joblens completion ", {"bash", "zsh", "fish"}),
]


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_bash(line: str, wanted: set[str], tmp_path: Path) -> None:
    """What Tab offers in bash."""
    script = tmp_path / "joblens.bash"
    script.write_text(completion.render_bash(GRAMMAR))
    words = line.split(" ")
    driver = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _joblens; echo "${COMPREPLY[@]}"'
    offered = set(shell("bash", "-c", driver, "bash", str(script), *words).split())
    assert wanted <= offered
    assert all(word.startswith(words[-1]) for word in offered)


def test_bash_behind_two_dashes(tmp_path: Path) -> None:
    """`joblens run -- ` offers commands, and none of joblens' own options."""
    script = tmp_path / "joblens.bash"
    script.write_text(completion.render_bash(GRAMMAR))
    driver = 'source "$1"; COMP_WORDS=(joblens run -- sle); COMP_CWORD=3; _joblens; echo "${COMPREPLY[@]}"'
    assert "sleep" in shell("bash", "-c", driver, "bash", str(script)).split()


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_fish(line: str, wanted: set[str], tmp_path: Path) -> None:
    """What Tab offers in fish."""
    script = tmp_path / "joblens.fish"
    script.write_text(completion.render_fish(GRAMMAR))
    offered = shell("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'")
    assert wanted <= {row.split("\t")[0] for row in offered.splitlines()}


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_zsh(line: str, wanted: set[str], tmp_path: Path) -> None:
    """What is handed to zsh, which itself leaves out what does not begin like the word that is typed."""
    script = tmp_path / "_joblens"
    script.write_text(completion.render_zsh(GRAMMAR))
    driver = (
        "compdef() { :; }; _files() { :; }; compadd() { shift; print -rl -- $@; }\n"
        "_describe() { print -rl -- ${described%%:*}; }\n"
        'source $1; shift; words=("$@"); CURRENT=$#; _joblens; sleep 0'  # PATH is still whole
    )
    assert wanted <= set(shell("zsh", "-f", "-c", driver, "zsh", str(script), *line.split(" ")).split())


def test_manual_page(tmp_path: Path) -> None:
    """groff formats it without a warning, and every command is in it."""
    page = tmp_path / "joblens.1"
    page.write_text(man.render(GRAMMAR))
    text = shell("groff", "-man", "-Tutf8", "-ww", "-P-cbou", str(page))
    for name, _ in COMMANDS:
        assert f"joblens {name}" in text
    assert "EXIT STATUS" in text
