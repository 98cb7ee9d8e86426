"""Secrets in command lines are masked, as the preloaded library does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import ConfigError
from joblens.core.secrets import (
    MASKS,
    add_masks,
    mask_arguments,
    mask_command,
    mask_further,
    mask_secret,
    use_masks,
)

CASES = [
    (["--password=hunter2"], ["--password=***"]),
    (["--api-key", "hunter2", "x"], ["--api-key", "***", "x"]),
    (["--password", "two words"], ["--password", "***"]),
    (["--password", "-v"], ["--password", "-v"]),
    (["TOKEN=hunter2", "GITHUB_TOKEN=hunter2"], ["TOKEN=***", "GITHUB_TOKEN=***"]),
    (["--tokenizer=fast", "--max-tokens", "512"], ["--tokenizer=fast", "--max-tokens", "512"]),
    (["https://me:hunter2@host/x?token=hunter2&y=1"], ["https://me:***@host/x?token=***&y=1"]),
    (["Authorization: Bearer hunter2"], ["Authorization: Bearer ***"]),
    (['{"secret": "hunter2"}'], ['{"secret": "***"}']),
    (["sh", "-c", "run --passwd hunter2 --verbose"], ["sh", "-c", "run --passwd *** --verbose"]),
    (["--password=a,b;c&d", "--password=two words"], ["--password=***", "--password=***"]),
    (["--env=DB_PASSWORD=a,b", "A=1,TOKEN=b,C=3"], ["--env=DB_PASSWORD=***", "A=1,TOKEN=***,C=3"]),
    (["-H", "Authorization: token ghp_abc"], ["-H", "Authorization: ***"]),
    (["curl -H 'Authorization: token a\"b' host"], ["curl -H 'Authorization: ***' host"]),
    (["curl -H Authorization:a b"], ["curl -H Authorization:***"]),
    (['{"password": "a b", "user": "me"}'], ['{"password": "***", "user": "me"}']),
    (['{"password": "a\\"b"}', '{"password": ""}'], ['{"password": "***"}', '{"password": ""}']),
    (["sh -c \"x '--token=a b' c\""], ["sh -c \"x '--token=***' c\""]),
    (['curl -d "{\\"token\\": \\"a b\\"}"'], ['curl -d "{\\"token\\": \\"***"']),
    (["https://me:pw@x@host", "postgres://me:p/w@host"], ["https://me:***@host", "postgres://me:***@host"]),
    (["https://me:pw@host?token=a@b"], ["https://me:***@host?token=***"]),
    (["--pass=a", "--pwd=a", "MYSQL_PWD=a", "--passwords=a", "-pass", "a"],
     ["--pass=***", "--pwd=***", "MYSQL_PWD=***", "--passwords=***", "-pass", "***"]),
    (["-passin", "pass:a b"], ["-passin", "pass:***"]),
    (["--token", "-abc", "--token", "--verbose"], ["--token", "***", "--token", "--verbose"]),
    (["x --token -abc --token -v"], ["x --token *** --token -v"]),
    (["PWD=/home", "--bypass=1", "--compass", "north"], ["PWD=/home", "--bypass=1", "--compass", "north"]),
    (["run(['x', '--password', 'a b'], key)", "f('--token', name)", '["--token","a"]'],
     ["run(['x', '--password', '***'], key)", "f('--token', name)", '["--token","***"]']),
    (["ls", "keys", "passage", "http://host/x"], ["ls", "keys", "passage", "http://host/x"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), CASES)
def test_values_are_masked(given: list[str], expected: list[str]) -> None:
    """Names stay, and words that only look alike."""
    assert mask_arguments(given) == expected


def test_a_line_is_masked_as_a_whole() -> None:
    """Where the arguments are not known one by one."""
    assert mask_secret("train --api-key hunter2 --lr 1") == "train --api-key *** --lr 1"


WORDS = (
    "--password", "token", "TOKEN", "Authorization", "Bearer", "basic", "pass", "pwd", "x", "-", "--", "-v",
    "=", ":", "://", "@", "/", " ", "  ", "'", '"', "\\", ",", "&", "me", "\n", "é", "bypass", "my_", "*",
)  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(WORDS)).map("".join) | st.text()))
def test_other_command_lines_stay(arguments: list[str]) -> None:
    """As many arguments as before; masked again they are the same."""
    masked = mask_arguments(arguments)
    assert len(masked) == len(arguments)
    assert mask_arguments(masked) == masked


# Patterns of users

OWN = "--license -p ghp_* *@corp.example SITE_*_ID=* --seat="
OWN_CASES = [
    (["--license", "hunter2", "x"], ["--license", "***", "x"]),
    (["--LICENSE=hunter2", "--licenses=2", "--license"], ["--LICENSE=***", "--licenses=2", "--license"]),
    (["--license", "-v", "--license", "--token=a"], ["--license", "-v", "--license", "--token=***"]),
    (["-p", "hunter2", "-pfirst"], ["-p", "***", "-pfirst"]),
    (["ghp_hunter2", "x-ghp_1", "GHP_hunter2"], ["ghp_***", "x-ghp_1", "GHP_***"]),
    (["me@corp.example", "me@corp.example.org"], ["***", "me@corp.example.org"]),
    (["SITE_A_ID=hunter2", "SITE_ID=1"], ["SITE_***", "SITE_ID=1"]),
    (["run --license hunter2 --token b", "y"], ["run --license ***", "y"]),
    (["x --password=a 'ghp_b c' d"], ["x --password=*** 'ghp_b c' d"]),
    (["x --password=a ghp_b c d"], ["x --password=*** ghp_***"]),
    (["--seat=hunter2", "--seat", "hunter2", "--seats=1"], ["--seat=***", "--seat", "***", "--seats=1"]),
    (["ghp_", "--license="], ["ghp_***", "--license=***"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), OWN_CASES)
def test_arguments_that_users_choose(
    given: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Are masked beside passwords; what follows one in the same argument is left out."""
    monkeypatch.setenv(MASKS, OWN)
    assert mask_arguments(given) == expected


def test_lines_are_masked_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quote may mean that the value goes on: what follows it is left out. What is masked stays the same."""
    monkeypatch.setenv(MASKS, OWN)
    masked = mask_secret("train --license a --api-key b ghp_c --lr 1")
    assert masked == "train --license *** --api-key *** ghp_*** --lr 1"
    assert mask_further([masked, "x"]) == [masked, "x"]
    assert mask_secret("train --license 'a b' --lr 1") == "train --license ***"


def test_a_command_that_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its end tells apart is masked wherever it is cut; words that are whole stay."""
    monkeypatch.setenv(MASKS, OWN)
    for secret in (b"https://me:hunter2@host", b"hunter2@corp.example"):
        data = b"sh\0-c\0run " + secret + b"\0first"
        found = [mask_command(data, longest) for longest in range(1, len(data) + 2)]
        assert not [it for it in found if "h" in it.replace("sh", "").replace("https://me:***@host", "")]
        assert found[1:8] == ["***", "sh", "sh ***", "sh ***", "sh -c", "sh -c ***", "sh -c ***"]
    assert mask_command(b"a\0b\0", 4) == mask_command(b"a\0b\0c\0", 4) == "a b"


@pytest.mark.parametrize("mask", ["", "*", "**", "a b", "a\tb", "é*", "x" * 101])
def test_patterns_that_cannot_be(mask: str) -> None:
    with pytest.raises(ConfigError, match="mask "):
        add_masks([mask])
    assert MASKS not in os.environ


def test_too_many_patterns() -> None:
    with pytest.raises(ConfigError, match="more than 1000 characters"):
        add_masks([f"{number:099}" for number in range(11)])


def test_patterns_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are added to those of the variable, each once."""
    monkeypatch.setenv(MASKS, "a b")
    monkeypatch.setenv("JOBLENS_CONFIG", str(tmp_path / "joblens.toml"))
    (tmp_path / "joblens.toml").write_text('mask = ["b", "c*"]\n')
    use_masks(["d"])
    assert os.environ[MASKS] == "a b d c*"
    use_masks()
    assert os.environ[MASKS] == "a b d c*"
    (tmp_path / "joblens.toml").write_text('mask = "b"\n')
    with pytest.raises(ConfigError, match="not a list"):
        use_masks()


def test_patterns_of_settings_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the settings before do not stay, however often they change."""
    monkeypatch.setenv(MASKS, "a")
    for number in range(20):
        add_masks([f"{number:099}"], "a")
    assert os.environ[MASKS] == f"a {19:099}"
    add_masks([], "")
    assert os.environ[MASKS] == ""


OWN_WORDS = (*WORDS, "--license", "ghp_", "corp.example", "SITE_", "_ID", "-p")


@given(st.lists(st.lists(st.sampled_from(OWN_WORDS)).map("".join) | st.text()), st.text(alphabet=" 'x-=*"))
def test_nothing_of_what_is_masked_is_left(arguments: list[str], between: str) -> None:
    """Whatever is before it and behind it; there are as many arguments as before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MASKS, OWN)
        secrets = [f"{between} ghp_hunter2{between}", f"{between} --license=hunter2{between}hunter2"]
        masked = mask_arguments([*arguments, *secrets])
        assert len(masked) == len(arguments) + 2
        assert not any("hunter2" in argument for argument in masked)
        assert "hunter2" not in mask_secret(f"x {between} --license=hunter2{between} ghp_hunter2")
        assert mask_arguments(arguments)[:1] == masked[: min(len(arguments), 1)]
