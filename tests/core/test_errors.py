from __future__ import annotations

from joblens.core.errors import ConfigError, MalformedError, sentence


def test_one_line_with_its_causes() -> None:
    """Whatever the chain of causes, the user reads one line, with what and where."""
    try:
        try:
            raise FileNotFoundError(2, "No such file or directory", "/x")
        except OSError as cause:
            raise ConfigError("no settings", "a.toml", 3) from cause
    except ConfigError as error:
        told = sentence(error)
    assert told == "a.toml:3: no settings: /x: No such file or directory"


def test_nothing_moves_the_cursor() -> None:
    """A hostile name in an error cannot begin a line or send control sequences to a terminal."""
    assert sentence(MalformedError("a\nb", "\x1b[2J")) == "a?b: ?[2J"
