"""`joblens prometheus-config`: what it prints is what Prometheus reads, whatever the names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from joblens.cli import main
from joblens.cli.prometheus_config import render
from joblens.core.errors import UsageError
from programs import need


def targets(text: str) -> list[str]:
    return re.findall(r'^ {10}- "(.*)"$', text, re.MULTILINE)


def test_names_and_addresses() -> None:
    """With the agent's port where none is given, and each once."""
    hosts = ["node1", "node2:9000", "10.0.0.1", "::1", "[fe80::1]:12", "[fe80::2]", "node1"]
    expected = ["node1:9477", "node2:9000", "10.0.0.1:9477", "[::1]:9477", "[fe80::1]:12", "[fe80::2]:9477"]
    assert targets(render(hosts, 9477, 5.0)) == expected


@pytest.mark.parametrize(
    "host",
    ["", "a b", 'a"b', "http://a:1", "a:b", "a:0", "a:99999", "a\nb", "a:", ":1", "ä", "a:٣", "x" * 9 + "/"],
)
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(UsageError):
        render([host], 9477, 5.0)


@pytest.mark.parametrize(("seconds", "text"), [(5.0, "5s"), (0.5, "500ms"), (1.25, "1250ms"), (60, "60s")])
def test_intervals(seconds: float, text: str) -> None:
    assert f"scrape_interval: {text}\n" in render(["a"], 9477, seconds)


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, float("nan"), float("inf")])
def test_what_is_no_interval(seconds: float) -> None:
    with pytest.raises(UsageError):
        render(["a"], 9477, seconds)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence and 2 if it was called wrongly."""
    assert main(["prometheus-config", "--port", "9000", "--interval", "1", "a", "b"]) == 0
    text = capsys.readouterr().out
    assert targets(text) == ["a:9000", "b:9000"]
    assert main(["prometheus-config", "a b"]) == 2
    assert capsys.readouterr().err == "joblens: 'a b' is not a host name\n"


@pytest.mark.parametrize("interval", [0.5, 5, 3600])
def test_promtool_accepts_it(tmp_path: Path, interval: float) -> None:
    need("promtool")
    token = tmp_path / "the token's"
    token.write_text("secret\n")
    file = tmp_path / "prometheus.yml"
    file.write_text(render(["node1", "[::1]:9477", "10.0.0.1:80"], 9477, interval, str(token)))
    checked = subprocess.run(
        ["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
