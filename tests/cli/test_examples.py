"""The examples in the help of all commands, and words of a list after options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module

import pytest

from joblens.cli import COMMANDS, main
from joblens.cli.parser import _module, build_parser

_SUBSTITUTION = re.compile(r"\$\(([^)]*)\)|`([^`]*)`")


def examples() -> list[list[str]]:
    """The words of each call of joblens in them, without the rest of the shell's line."""
    texts = [import_module(_module(name)).EXAMPLE.rpartition("example:\n")[2] for name, _ in COMMANDS]
    return [words for text in texts for line in text.splitlines() for words in calls(line)]


def calls(line: str) -> Iterator[list[str]]:
    """Also those whose output is a word of another, as in `submit "$(joblens stage)"`."""
    inner = [it[1] or it[2] for it in _SUBSTITUTION.finditer(line)]
    plain = "; ".join([*inner, _SUBSTITUTION.sub("OUTPUT", line)]).replace("$?", "0")
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|;&<>"):
            if words[:1] == ["joblens"]:
                yield words
            words = []
        else:
            words.append(word)


def test_examples_are_parsed() -> None:
    """What the help of a command shows is accepted by its parser."""
    parser = build_parser([name for name, _ in COMMANDS])
    found = examples()
    assert len(found) >= len(COMMANDS)
    for words in found:
        try:
            options = parser.parse_args(words[1:])
        except SystemExit:
            pytest.fail(" ".join(words))
        assert hasattr(options, "run"), words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tag 4242 --replace model:vit", {"id": "4242", "pairs": ["model:vit"], "replace": True}),
        ("tag 4242 a:b --remove x b:c", {"pairs": ["a:b", "b:c"], "remove": ["x"]}),
        ("annotate 4242 --json x:y", {"pairs": ["x:y"], "json": True}),
        ("tag --remove x --remove y 4242", {"id": "4242", "pairs": [], "remove": ["x", "y"]}),
        ("model create m --tag k:v 7 8", {"model": "m", "ids": ["7", "8"], "tag": ["k:v"]}),
    ],
)
def test_words_after_options(line: str, expected: dict[str, object]) -> None:
    words = line.split()
    options = vars(build_parser([words[0]]).parse_args(words))
    assert {name: options[name] for name in expected} == expected


def test_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Also beside words that belong to a list; so are words where there is no list."""
    for line, word in (("tag 4242 --replace a:b --nothing", "--nothing"), ("job 4242 --json 4243", "4243")):
        with pytest.raises(SystemExit):
            build_parser([line.split()[0]]).parse_args(line.split())
        assert f"unrecognized arguments: {word}\n" in capsys.readouterr().err


def test_ids_and_filters(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path))
    assert main(["model", "create", "m", "--tag", "k:v", "7"]) == 2
    assert "write ids of jobs or filters, not both" in capsys.readouterr().err
