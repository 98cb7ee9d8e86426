"""Which settings files count, in which order, and how that is shown."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.cli.config import find_settings
from joblens.cli.hub import load_hub
from joblens.cli.settings import load_agent
from joblens.core.config import CollectorSettings, Settings
from joblens.core.config_files import Layer, find_paths, flatten, load_layers, merge, origins, user_path
from joblens.core.errors import ConfigError
from joblens.core.toml import parse_simple_toml, parse_toml
from joblens.hub.settings import HubSettings

DEFAULT = Path(__file__).parents[2] / "src" / "joblens" / "default.toml"


def joblens(*words: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **(env or {})}
    command = [sys.executable, "-m", "joblens", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **more)


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/joblens/joblens.toml"),
        ({"HOME": "/h"}, "/h/.config/joblens/joblens.toml"),
        ({"XDG_CONFIG_HOME": "x", "HOME": "/h"}, "/h/.config/joblens/joblens.toml"),
        ({"HOME": ""}, ""),
        ({}, ""),
    ],
)
def test_the_users_own(environment: dict[str, str], path: str) -> None:
    assert user_path(environment) == path


def test_which_count(tmp_path: Path) -> None:
    """One that is named counts alone, --config before the variable; else the system's and the user's."""
    system, user = tmp_path / "system.toml", tmp_path / "joblens" / "joblens.toml"
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert find_paths(None, environment, str(system)) == []
    user.parent.mkdir()
    user.touch()
    system.touch()
    assert find_paths(None, environment, str(system)) == [str(system), str(user)]
    environment["JOBLENS_CONFIG"] = "/elsewhere"
    assert find_paths(None, environment, str(system)) == ["/elsewhere"]
    assert find_paths("/named", environment, str(system)) == ["/named"]


def test_value_by_value(tmp_path: Path) -> None:
    """The user's file changes what it names; the rest stays the system's, each with its origin."""
    system, user = tmp_path / "system.toml", tmp_path / "joblens" / "joblens.toml"
    user.parent.mkdir()
    system.write_text(
        'interval = 5\ncluster = "fox"\n[push]\nurl = "http://a"\nperiod = 20.0\n[hub]\nnodes = 7\n'
    )
    user.write_text("interval = 2\n[push]\nperiod = 30.0\n[collectors.disk]\nenabled = false\n")
    layers = load_layers(None, {"XDG_CONFIG_HOME": str(tmp_path)}, str(system))
    settings = load_agent(layers)
    assert (settings.interval, settings.cluster) == (2.0, "fox")
    assert (settings.push.url, settings.push.period) == ("http://a", 30.0)
    assert not settings.collectors["disk"].enabled
    assert load_hub(layers).nodes == 7
    assert origins(layers) == {
        "cluster": str(system), "push.url": str(system), "hub.nodes": str(system),
        "interval": str(user), "push.period": str(user), "collectors.disk.enabled": str(user),
    }  # fmt: skip


def test_the_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    system, user = tmp_path / "system.toml", tmp_path / "joblens" / "joblens.toml"
    user.parent.mkdir()
    system.write_text("intervall = 5\n")
    user.write_text("interval = 2\n")
    with pytest.raises(ConfigError, match=re.escape(f"{system}: unknown setting intervall")):
        load_agent(load_layers(None, {"XDG_CONFIG_HOME": str(tmp_path)}, str(system)))


def test_the_default_file_is_the_defaults() -> None:
    """As it is, and with every setting in it no longer commented out; older Pythons read it too."""
    text = DEFAULT.read_text()
    as_it_is = load_agent([Layer("f", parse_toml(text, "f"))])
    assert as_it_is._replace(collectors={}) == Settings()
    assert set(as_it_is.collectors.values()) == {CollectorSettings()}
    whole = re.sub(r"^#(\w+ =)", r"\1", text, flags=re.M)
    assert parse_simple_toml(whole, "f") == parse_toml(whole, "f")
    values: Any = parse_toml(whole, "f")
    processes = values.pop("collectors")["processes"]
    assert processes["interval"] == 5.0
    assert load_agent([Layer("f", values)]) == Settings()
    assert load_hub([Layer("f", values)]) == HubSettings()


def test_init_and_show(tmp_path: Path) -> None:
    """What `init` writes takes effect, and `show` prints the source of each value."""
    home = {"HOME": str(tmp_path)}
    path = tmp_path / ".config" / "joblens" / "joblens.toml"
    assert joblens("config", "init", env=home).returncode == 0
    assert path.read_text() == DEFAULT.read_text()
    again = joblens("config", "init", env=home)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"joblens: {path} exists and is not overwritten\n"

    path.write_text('interval = 5\n[push]\nurl = "http://hub:9478"\n[hub.sinks.csv]\nroot = "/srv"\n')
    shown = json.loads(joblens("config", "show", "--json", env=home).stdout)
    found = {item["setting"]: (item["value"], item["from"]) for item in shown}
    assert found["interval"] == (5.0, str(path))
    assert found["push.url"] == ("http://hub:9478", str(path))
    assert found["hub.sinks.csv.root"] == ("/srv", str(path))
    assert found["push.period"] == (10.0, "default")
    assert found["hub.listen"] == ("127.0.0.1:9478", "default")

    changed = joblens("config", "show", "--changed", "--csv", env=home).stdout.splitlines()
    assert list(csv.reader(changed)) == [
        ["setting", "value", "from"],
        ["interval", "5.0", str(path)],
        ["push.url", '"http://hub:9478"', str(path)],
        ["hub.sinks.csv.root", '"/srv"', str(path)],
    ]
    table = joblens("config", "show", env=home)
    assert re.search(r"^interval +5\.0 +/", table.stdout, re.M)
    assert table.stderr == f"joblens: {path}\n"


def test_the_agent_goes_by_it(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('interval = 7\ncluster = "fox"\n')
    found = joblens("agent", "--once", env={"JOBLENS_CONFIG": str(config)})
    assert found.returncode == 0, found.stderr
    assert "joblens_agent_interval_seconds 7" in found.stdout
    config.write_text("interval = 7\n[hub]\nnodez = 3\n")
    hub = joblens("hub", env={"JOBLENS_CONFIG": str(config)})
    assert (hub.returncode, hub.stderr) == (
        2, f"joblens: {config}: unknown setting hub.nodez, did you mean hub.nodes?\n",
    )  # fmt: skip


def test_init_elsewhere(tmp_path: Path) -> None:
    """A file of another name counts only where it is named, and that is said."""
    made = joblens("config", "init", str(tmp_path / "sub" / "my.toml"))
    assert made.returncode == 0
    assert f"--config {tmp_path}/sub/my.toml" in made.stderr
    nowhere = joblens("config", "init")
    assert (nowhere.returncode, "the home folder is unknown" in nowhere.stderr) == (2, True)
    blocked = joblens("config", "init", "/proc/no/where.toml")
    assert (blocked.returncode, blocked.stderr.count("\n")) == (3, 1)


def test_a_file_that_is_not_there() -> None:
    found = joblens("config", "show", env={"JOBLENS_CONFIG": "/no/such.toml"})
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr == "joblens: /no/such.toml: No such file or directory\n"


_NAMES = st.sampled_from("abc")
_TREES = st.recursive(
    st.integers(0, 3), lambda inner: st.dictionaries(_NAMES, inner, min_size=1, max_size=3), max_leaves=8
).filter(lambda found: isinstance(found, dict))


@given(st.lists(_TREES, max_size=4))
def test_last_option_counts(trees: list[dict[str, Any]]) -> None:
    """Each value in force is that of the last file which says something about it."""
    layers = [Layer(str(number), tree) for number, tree in enumerate(trees)]
    merged, where = dict(flatten(merge(layers))), origins(layers)
    for name, value in merged.items():
        assert dict(flatten(layers[int(where[name])].values))[name] == value


def test_every_setting_is_shown() -> None:
    names = {setting.name for setting in find_settings(os.devnull, {})}
    tables = {"collectors", "attribution", "external", "push", "usermode", "tsdb", "store"}
    assert names >= {*Settings._fields} - tables
    assert {name for name in names if name.startswith("hub.")} == {
        f"hub.{name}" for name in HubSettings._fields if name not in ("sinks", "kafka")
    }
