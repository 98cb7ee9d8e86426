"""Files that are read at the start, damaged or replaced: one sentence, and everything else goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.gaps import Gaps
from joblens.agent.spool import DAMAGED, Spool
from joblens.core.config_files import load_layer
from joblens.core.errors import ConfigError
from joblens.core.json_file import load_json, parse_json, read_file
from joblens.core.model import Gap
from joblens.core.toml import parse_simple_toml, parse_toml
from services.running import Agent
from small_hub import small_hub
from waiting import wait_for

DEEP = b"[" * 100_000
NOT_JSON = (
    b"", b"{", b"\xff\xfe", b"\0" * 512, b"NaN", b"[1e999]", b"[-1e999]", b"[Infinity]", DEEP,
    b'{"a":' * 50_000, b"1" * 5000, b"[123456789012345678901234567890]",
)  # fmt: skip
ROW = [1, 2, 3, 4, "spool full", "b1"]
DAMAGED_GAPS = (
    *NOT_JSON,
    b'[[1e999, 2, 3, 4, "x", "b1"]]',
    b"[[1, 2, 3, 4]]",
    b'[[1, 2, 3, 4, "x", null]]',
    b'[[-1, 2, 3, 4, "x", "b1"]]',
    b"7",
    b'{"a": 1}',
    b"[7]",
)


@pytest.mark.parametrize("data", NOT_JSON, ids=lambda data: ascii(data[:12]))
def test_strict_json(data: bytes) -> None:
    """Whatever it is: ValueError, and no other kind of error."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(data)


numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(json_values)
def test_all_else_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@given(st.binary() | st.text().map(str.encode))
def test_any_json(data: bytes) -> None:
    try:
        parse_json(data)
    except ValueError:
        return


def test_files(tmp_path: Path) -> None:
    """A folder, a pipe, a device or a file that is too large is an OSError at once: nothing is waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"1" * 100)
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "large", "/dev/zero", tmp_path / "none"):
        with pytest.raises(OSError, match=r"\w"):
            load_json(str(path), 99)
    assert read_file(str(tmp_path / "large"), 100) == b"1" * 100


# The agent's own


@pytest.mark.parametrize("data", DAMAGED_GAPS, ids=lambda data: ascii(data[:24]))
def test_damaged_gaps(tmp_path: Path, data: bytes) -> None:
    """They are set aside, and that they are lost is itself a gap; those that can be read are kept."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    (folder / "gaps.json").write_bytes(data)
    spool = Spool(str(folder), 1 << 20, "b1", now_ns=77)
    (aside,) = folder.glob("gaps.json.damaged-*")
    assert aside.read_bytes() == data
    assert str(aside) in spool.damage
    assert spool.gaps.carry(1) == [Gap(0, 0, 0, 77, DAMAGED, "b1")]
    spool.leave()
    found = json.loads((folder / "gaps.json").read_bytes())
    assert [row[4] for row in found] == [DAMAGED]
    assert Gaps(str(folder / "gaps.json")).damage == ""


def test_gaps_before_the_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "gaps.json"
    path.write_text(json.dumps([ROW, [1, 2]]))
    gaps = Gaps(str(path))
    assert "not a gap: [1, 2]" in gaps.damage
    assert gaps.carry(1) == [Gap(1, 2, 3, 4, "spool full", "b1")]


@pytest.mark.parametrize("how", ["a folder", "a pipe"])
def test_another_thing_in_its_place(tmp_path: Path, how: str) -> None:
    path = tmp_path / "gaps.json"
    if how == "a pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    gaps = Gaps(str(path))
    assert gaps.damage
    gaps.save()
    assert path.read_bytes() == b"[]"


def test_a_damaged_note(tmp_path: Path) -> None:
    """If the previous agent's progress is unknown, that is a gap as well."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    (folder / "lock").write_bytes(b'{"boot": "b1", "sequence": 1e999, "to_ns": 1, "ended": true}'.ljust(512))
    spool = Spool(str(folder), 1 << 20, "b1", now_ns=77)
    assert "lock" in spool.damage
    assert spool.gaps.carry(1) == [Gap(0, 0, 0, 77, DAMAGED, "b1")]
    spool.leave()


def test_an_agent_starts(tmp_path: Path) -> None:
    """It logs it once, reports it to the hub, and continues."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    (folder / "gaps.json").write_bytes(b'[[1e999, 2, 3, 4, "x", "b1"]]')
    with small_hub() as hub:
        config = f'interval = 0.1\n[push]\nurl = "{hub.url}"\nperiod = 0.1\nspool = "{folder}"\n'
        agent = Agent(tmp_path / "agent", config)
        try:
            told = wait_for("the gap", lambda: [gap for post in hub.posts for gap in post.header["gaps"]])
            assert told[0][4] == DAMAGED
            assert agent.stop() == 0
        finally:
            agent.process.kill()
            agent.process.wait()
    assert [line for line in agent.said() if "earlier gaps are unknown" in line] == agent.said()[:1]


# Settings

BAD_TOML = {
    "arrays": "a = " + "[" * 10_000 + "]" * 10_000,
    "tables": "[" + ".".join(["a"] * 5000) + "]\nb = 1",
    "many tables": "\n".join(f"[{'.'.join(['a'] * n)}]" for n in range(1, 100)),
    "digits": "interval = " + "9" * 5000,
    "64 bits": "interval = 99999999999999999999",
    "a name": "n" * 10_000 + " = 1",
    "not closed": "a = [\n" + "[\n" * 20_000,
}


@pytest.mark.parametrize("text", BAD_TOML.values(), ids=BAD_TOML)
@pytest.mark.parametrize("parse", [parse_toml, parse_simple_toml])
def test_long_and_deep_toml(parse: object, text: str) -> None:
    """One sentence with the file's name, of a length that can be read."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "/etc/x.toml")  # type: ignore[operator]
    assert str(caught.value).startswith("/etc/x.toml:")
    assert len(str(caught.value)) < 300


def test_hexadecimal_numbers_without_end() -> None:
    """They have no limit in Python, until somebody prints them."""
    with pytest.raises(ConfigError, match="64 bits"):
        parse_toml("interval = 0x" + "f" * 10_000, "x.toml")


@pytest.mark.parametrize("how", ["folder", "pipe", "large", "latin"])
def test_settings_that_are_no_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "joblens.toml"
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"#" * (1 << 20) if how == "large" else b"node = '\xff'")
    with pytest.raises((OSError, ConfigError), match=r"\w"):
        load_layer(str(path))


def test_settings_from_a_shell() -> None:
    """`--config <(…)` is a pipe that a process writes to; /dev/null has no settings."""
    reader, writer = os.pipe()
    os.write(writer, b"interval = 2.0")
    os.close(writer)
    assert load_layer(f"/dev/fd/{reader}").values == {"interval": 2.0}
    os.close(reader)
    assert load_layer(os.devnull).values == {}
