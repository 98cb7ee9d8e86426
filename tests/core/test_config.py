from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.table import COLLECTORS
from joblens.core.config import (
    ExternalSettings,
    Known,
    PushSettings,
    Settings,
    Url,
    parse_settings,
    split_address,
    split_url,
)
from joblens.core.config_files import load_layer
from joblens.core.errors import ConfigError

KNOWN = {collector.name: collector.options for collector in COLLECTORS}


def load_settings(path: str, known: Known) -> Settings:
    return parse_settings(load_layer(path).values, path, known)


def test_all_settings(tmp_path: Path) -> None:
    """Every kind of setting reaches the frozen settings."""
    path = tmp_path / "agent.toml"
    path.write_text(
        'interval = 2\nlisten = "[::1]:9000"\ncluster = "fox"\nprocess_metrics = true\n'
        "[collectors.interrupts]\nper_cpu = true\ninterval = 30\n[collectors.disk]\nenabled = false\n"
        '[attribution]\ninfer = false\njob_files = "/x"\n'
    )
    settings = load_settings(str(path), KNOWN)
    assert settings.interval == 2.0
    assert (settings.listen, settings.cluster, settings.process_metrics) == ("[::1]:9000", "fox", True)
    assert settings.collectors["interrupts"] == (True, 30.0, (("per_cpu", True),))
    assert not settings.collectors["disk"].enabled
    assert settings.attribution == ("/x", False, 1000, "flux", "")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"intervall": 1}, "unknown setting intervall, did you mean interval?"),
        ({"collectors": {"memroy": {}}}, "did you mean collectors.memory?"),
        ({"collectors": {"cpu": {"intervl": 1}}}, "did you mean collectors.cpu.interval?"),
        ({"collectors": {"cpu": {"per_cpu": True}}}, "unknown setting collectors.cpu.per_cpu"),
        ({"attribution": {"infr": 1}}, "did you mean attribution.infer?"),
        ({"interval": "1"}, "interval is '1', expected a value such as 1.0"),
        ({"interval": 0}, "it can be 0.01 to 86400.0 s"),
        ({"interval": float("nan")}, "it can be 0.01 to 86400.0 s"),
        ({"interval": True}, "interval is True"),
        ({"collectors": {"cpu": {"interval": -1}}}, "collectors.cpu.interval is -1.0"),
        ({"listen": "9477"}, "expected HOST:PORT"),
        ({"listen": "h:99999"}, "expected HOST:PORT"),
        ({"listen": "h:²"}, "expected HOST:PORT"),
        ({"interval": 10**400}, "interval is 1000"),
        (
            {"attribution": {"job_files": "a\0b"}},
            "attribution.job_files is 'a\\x00b', which has unprintable characters",
        ),
        ({"attribution": 3}, "attribution is 3, expected a table"),
    ],
)
def test_wrong_settings_get_a_sentence(found: dict[str, Any], said: str) -> None:
    """A wrong setting is an error that says what, where, and what was probably meant."""
    with pytest.raises(ConfigError) as caught:
        parse_settings(found, "agent.toml", KNOWN)
    assert str(caught.value).startswith("agent.toml: ")
    assert said in str(caught.value)


def test_defaults_run() -> None:
    """An empty file means the defaults."""
    assert parse_settings({}, "", KNOWN) == Settings()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.dictionaries(st.text(), inner),
    )
)
def test_any_document_is_read_or_refused(found: Any) -> None:
    """Whatever stands in the file, there are settings or a ConfigError, never another exception."""
    if isinstance(found, dict):
        with suppress(ConfigError):
            parse_settings(found, "x", KNOWN)


def test_not_utf8(tmp_path: Path) -> None:
    """A binary file is refused with its name."""
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings(str(path), KNOWN)


@pytest.mark.parametrize("text", ["interval = 1" + "0" * 5000, "x = " + "[" * 100_000])
def test_too_much_of_a_thing(tmp_path: Path, text: str) -> None:
    """A number or a nesting without end is a sentence too."""
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_settings(str(path), KNOWN)


def test_addresses() -> None:
    """Host and port, IPv6 in brackets."""
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)


def test_scripts_of_the_site(tmp_path: Path) -> None:
    """There is none unless a table names it; of it only the command is needed."""
    path = tmp_path / "agent.toml"
    path.write_text(
        '[external.room]\ncommand = ["/opt/site/temp.sh", "-v"]\n'
        '[external.door_2]\ncommand = ["/x"]\ninterval = 5\ntimeout = 1.5\nuser = "site"\n'
    )
    assert load_settings(str(path), KNOWN).external == {
        "room": ExternalSettings(("/opt/site/temp.sh", "-v"), 60.0, 10.0, ""),
        "door_2": ExternalSettings(("/x",), 5.0, 1.5, "site"),
    }
    assert Settings().external == {}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"external": {"Room": {"command": ["/x"]}}}, "names consist of lowercase letters"),
        ({"external": {"a b": {"command": ["/x"]}}}, "names consist of lowercase letters"),
        ({"external": {"x": {}}}, "external.x.command is required"),
        ({"external": {"x": {"command": "/x"}}}, "external.x.command is required"),
        ({"external": {"x": {"command": ["x"]}}}, "external.x.command is required"),
        ({"external": {"x": {"command": ["/x", 1]}}}, "external.x.command is 1"),
        ({"external": {"x": {"command": ["/x\0"]}}}, "which has unprintable characters"),
        ({"external": {"x": {"command": ["/x"], "usr": "a"}}}, "did you mean external.x.user?"),
        ({"external": {"x": {"command": ["/x"], "timeout": 0}}}, "external.x.timeout is 0.0"),
        ({"external": {"x": {"command": ["/x"], "interval": "1"}}}, "external.x.interval is '1'"),
        ({"external": {"x": 1}}, "external.x is 1, expected a table"),
    ],
)
def test_wrong_scripts_get_a_sentence(found: dict[str, Any], said: str) -> None:
    """As for every other setting."""
    with pytest.raises(ConfigError) as caught:
        parse_settings(found, "agent.toml", KNOWN)
    assert said in str(caught.value)


def test_where_batches_go(tmp_path: Path) -> None:
    """Nowhere unless `[push]` names a hub; the hub's own table in the same file is not its business."""
    path = tmp_path / "agent.toml"
    path.write_text(
        '[push]\nurl = "https://hub:9478/x"\nperiod = 5\nsets = ["cpu", "job"]\nspool = "/s"\n'
        'spool_bytes = 1_000_000\ntoken_file = "/t"\nca_file = "/c"\ntimeout = 3\n'
        '[hub]\nlisten = "127.0.0.1:1"\n'
    )
    assert load_settings(str(path), KNOWN).push == PushSettings(
        "https://hub:9478/x", 5.0, ("cpu", "job"), "/s", 1_000_000, "/t", False, -1, "", "/c", 3.0
    )
    assert Settings().push.url == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"urls": "x"}, "did you mean push.url?"),
        ({"url": "hub:9478"}, "push.url is 'hub:9478', expected a URL such as http://hub.example.org"),
        ({"url": "ftp://hub"}, "expected a URL such as"),
        ({"url": "http://user:secret@hub"}, "expected a URL such as"),
        ({"url": "http://hub:0"}, "expected a URL such as"),
        ({"url": "http://hub:70000"}, "expected a URL such as"),
        ({"url": "http://hub/x y"}, "expected a URL such as"),
        ({"url": "http://hub/?a"}, "expected a URL such as"),
        ({"url": "http://hub", "ca_file": "/c"}, "push.ca_file requires a url that begins with https://"),
        ({"period": 0}, "push.period is 0.0"),
        ({"timeout": -1}, "push.timeout is -1.0"),
        ({"sets": "cpu"}, 'push.sets is \'cpu\', expected a list such as ["cpu", "job"]'),
        ({"sets": ["cpu", 1]}, "push.sets is 1"),
        ({"spool": "here"}, "push.spool is 'here', expected an absolute path"),
        ({"spool_bytes": 1}, "push.spool_bytes is 1, it can be 65536 to"),
        ({"spool_bytes": 1e9}, "push.spool_bytes is 1000000000.0"),
        ({"munge": True, "token_file": "/t"}, "mutually exclusive"),
    ],
)
def test_wrong_push_settings_get_a_sentence(found: dict[str, Any], said: str) -> None:
    """As for every other setting."""
    with pytest.raises(ConfigError) as caught:
        parse_settings({"push": found}, "agent.toml", KNOWN)
    assert said in str(caught.value)


def test_urls() -> None:
    """The port that belongs to the scheme, IPv6 in brackets, a path in front of the hub's own."""
    assert split_url("http://hub") == Url(False, "hub", 80, "")
    assert split_url("https://hub/a/b/") == Url(True, "hub", 443, "/a/b")
    assert split_url("http://[::1]:9478/") == Url(False, "::1", 9478, "")
    assert split_url("http://[::1]:9478").authority == "[::1]:9478"
    assert split_url("http://hub").authority == "hub:80"
