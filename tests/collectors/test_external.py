from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.collectors.external.collector import Script
from joblens.collectors.external.text import parse_output
from joblens.collectors.external.trust import (
    Mount,
    check_file,
    find_identity,
    find_mount,
    parse_mount_types,
    read_interpreter,
)
from joblens.core.config import ExternalSettings, Settings, parse_settings
from joblens.core.errors import OutsideError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Rows
from joblens.core.toml import parse_toml
from joblens.wire.exposition import Exposition

PATIENCE = 60.0  # seconds after which what did not happen will not happen
ROOT = os.geteuid() == 0
Make = Callable[..., Path]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="joblens-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def shared(place: Path) -> Path:
    """A folder that everybody can write to."""
    folder = place / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def make(place: Path) -> Make:
    """A script of the shell."""

    def make(text: str, name: str = "script", mode: int = 0o755) -> Path:
        path = place / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(mode)
        return path

    return make


@pytest.fixture
def started() -> Iterator[Callable[..., Script]]:
    scripts: list[Script] = []

    def start(path: Path | str, *words: str, timeout: float = PATIENCE, user: str = "") -> Script:
        settings = ExternalSettings((str(path), *words), interval=0.01, timeout=timeout, user=user)
        scripts.append(Script(Host(), "x", settings))
        return scripts[-1]

    yield start
    for script in scripts:
        script.close()


def outcome(script: Script) -> Rows:
    """Return the result of its next run; each poll returns at once."""
    end = time.monotonic() + PATIENCE
    while (found := script.read()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found[0]


def wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


# What a script prints


def cells(text: str) -> dict[tuple[str, ...], dict[str, int | None]]:
    rows = parse_output("external_x", text.encode())
    return {
        tuple(map(str, key)): {
            column.name: None if value == ABSENT else value
            for column, value in zip(rows.schema.columns, rows.row(number))
        }
        for number, key in enumerate(rows.keys)
    }


def test_plain_lines() -> None:
    """`name value`: millionths, bytes as they are, and absent if not a number or too large."""
    text = (
        "temperature 21.5\nfree_bytes 20000000000000\nodd NaN\nlarge 1e13\nsmall -0.0000014\nx_bytes 1.6e3\n"
    )
    assert cells(text) == {
        (): {
            "temperature": 21_500_000,
            "free_bytes": 20 * 10**12,
            "odd": None,
            "large": None,
            "small": -1,
            "x_bytes": 1600,
        }
    }


def test_prometheus_text() -> None:
    """Labels are those of all series together; kind and help are what the script says."""
    text = """
# HELP doors_total doors opened
# TYPE doors_total counter
doors_total{room="a \\"b\\" } c"} 3 1700000000000
doors_total{ room = "d" , side="left", } 4
# TYPE watts gauge
watts{room="d"} +2.5e2
# a remark
# TYPE took histogram
took_bucket{le="+Inf"} 7
took_count 7
"""
    rows = parse_output("external_x", text.encode())
    assert rows.schema.labels == ("le", "room", "side")
    assert [(column.name, column.kind) for column in rows.schema.columns] == [
        ("doors", COUNTER), ("watts", GAUGE), ("took_bucket", COUNTER), ("took_count", COUNTER)
    ]  # fmt: skip
    assert rows.schema.columns[0].help == "doors opened"
    assert cells(text) == {
        ("", "", ""): {"doors": None, "watts": None, "took_bucket": None, "took_count": 7_000_000},
        ("+Inf", "", ""): {"doors": None, "watts": None, "took_bucket": 7_000_000, "took_count": None},
        ("", 'a "b" } c', ""): {"doors": 3_000_000, "watts": None, "took_bucket": None, "took_count": None},
        ("", "d", ""): {"doors": None, "watts": 250_000_000, "took_bucket": None, "took_count": None},
        ("", "d", "left"): {"doors": 4_000_000, "watts": None, "took_bucket": None, "took_count": None},
    }
    page = Exposition(openmetrics=False).render([rows]).decode()
    assert "# TYPE joblens_external_x_doors_total counter\n" in page
    assert 'joblens_external_x_doors_total{le="",room="d",side="left"} 4.0\n' in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a 1\nwhat is this\n", "line 2: syntax error: 'what is this'"),
        ("1a 1", "line 1: syntax error"),
        ("a", "line 1: syntax error"),
        ("a 1_000", "line 1: syntax error"),
        ("a ١", "line 1: syntax error"),
        ("a:b 1", "line 1: syntax error"),
        ('a{x="1} 2', "line 1: syntax error"),
        ('a{x="1",x="2"} 2', "line 1: syntax error"),
        ("a{x=1} 2", "line 1: syntax error"),
        ("a 1 2 3", "line 1: syntax error"),
        ("\n\na 1\na 2", "line 4: a occurs twice with the same labels"),
        ('a 1\na{x=""} 2', "line 2: a occurs twice with the same labels"),
        ("a 1\nA 1", "A cannot be the name of a series or label"),
        ('a{a="x"} 1', "a cannot be the name"),
        ("time 1", "time cannot be the name"),
        ("".join(f"a{n} 1\n" for n in range(2001)), "line 2001: more than 2000 series"),
        ("".join(f'a{n}{{x="{n}"}} 1\n' for n in range(200)), "200 combinations of labels with 200 names"),
    ],
)
def test_what_is_not_understood(text: str, said: str) -> None:
    """One sentence, with the line."""
    with pytest.raises(OutsideError) as caught:
        parse_output("external_x", text.encode())
    assert said in str(caught.value)


PIECES = st.sampled_from(
    ['a{x="1"} 2\n', "b 3.5\n", "# TYPE b counter\n", "b_total 1e400\n", "{", '"', "}", "\n"]
)


@given(st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=12).map(lambda it: "".join(it).encode())))
def test_any_output(data: bytes) -> None:
    """Rows that fit their schema, or one sentence."""
    with suppress(OutsideError):
        rows = parse_output("external_x", data)
        assert len(rows.values) == len(rows.keys) * len(rows.schema.columns)
        assert len(set(rows.keys)) == len(rows.keys)
        assert all(-(2**63) <= value < 2**63 for value in rows.values)
        Exposition(openmetrics=True).render([rows]).decode()


def test_the_example_in_the_documents() -> None:
    """docs/devices.md shows settings and output that are understood."""
    text = (Path(__file__).parents[2] / "docs" / "devices.md").read_text().partition("own script\n")[2]
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (output,) = re.findall(r"```\n(temperature.*?)```", text, re.DOTALL)
    assert set(parse_settings(parse_toml(toml, "example"), "example", {}).external) == {"room"}
    page = Exposition(openmetrics=False).render([parse_output("external_room", output.encode())]).decode()
    assert 'joblens_external_room_temperature_celsius{sensor="door"} 21.5\n' in page
    assert 'joblens_external_room_opened_total{sensor="door"} 17.0\n' in page


# How it is run


def test_a_run(make: Make, started: Callable[..., Script]) -> None:
    """The first poll starts it, a later one takes its output; schema and keys stay the same objects."""
    script = started(make("echo temperature 20\necho 'watts{room=\"a\"} 3'\n"))
    assert script.read() is None
    first, second = outcome(script), outcome(script)
    assert (first.schema.set, first.keys) == ("external_x", (("",), ("a",)))
    assert first.values == [20_000_000, ABSENT, ABSENT, 3_000_000]
    assert (second.schema, second.keys) == (first.schema, first.keys)
    assert second.schema is first.schema
    assert second.keys is first.keys


def test_surroundings(
    make: Make, started: Callable[..., Script], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little environment, nothing to read, no file of ours, a session of its own, and others come first."""
    monkeypatch.setenv("SECRET", "1")
    path = make(
        "echo session $(($(cut -d' ' -f6 /proc/$$/stat) == $$))\n"
        "while [ $(cut -d' ' -f19 /proc/$$/stat) -lt 10 ]; do sleep 0.01; done\n"
        "echo ours $(ls -l /proc/$$/fd | grep -c ours)\n"
        "echo input_bytes $(wc -c)\n"
        'echo secret "${SECRET:-0}"\n'
        'echo argument "$1"\n'
    )
    with (tmp_path / "ours").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        rows = outcome(started(path, "7"))
    found = dict(zip((column.name for column in rows.schema.columns), rows.values))
    assert found == {"session": 1_000_000, "ours": 0, "input_bytes": 0, "secret": 0, "argument": 7_000_000}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo a 1\nexit 3\n", "failed with exit code 3"),
        ("echo; echo no sensor here >&2; echo more >&2; exit 1\n", "failed with exit code 1: no sensor here"),
        ("kill -15 $$\n", "was killed by signal 15"),
        ("echo a 1\necho nonsense\n", "line 2: syntax error: 'nonsense'"),
        ("yes\n", "printed more than 1048576 bytes and was killed"),
        ("yes >&2\n", "printed more than 1048576 bytes and was killed"),
        ("head -c 1048577 /dev/zero\n", "printed more than 1048576 bytes and was killed"),
    ],
)
def test_a_run_that_fails(make: Make, started: Callable[..., Script], text: str, said: str) -> None:
    """One sentence for each run, and the next run is another chance."""
    path = make(text)
    script = started(path)
    for _ in range(2):
        with pytest.raises(OutsideError) as caught:
            outcome(script)
        assert said in str(caught.value)
    make("echo a 1\n")
    wait_until(lambda: succeeds(script))


def succeeds(script: Script) -> bool:
    try:
        return script.read() is not None
    except OutsideError:  # of a run that was under way
        return False


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_time_limit(make: Make, started: Callable[..., Script], shared: Path) -> None:
    """A script that hangs is killed with all that it started, and no other process is."""
    bystander = subprocess.Popen(["sleep", "1000"])
    script = started(make(f"sleep 1000 &\necho $! > {shared}/child\nwait\n"))
    try:
        script.read()
        wait_until(lambda: (shared / "child").exists() and (shared / "child").read_text().endswith("\n"))
        script.settings = script.settings._replace(timeout=0.01)  # which has passed by now
        with pytest.raises(OutsideError, match="timed out after 0.01 s and was killed"):
            outcome(script)
        child = int((shared / "child").read_text())
        wait_until(lambda: not lives(child))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_a_script_leaves_behind(make: Make, started: Callable[..., Script], shared: Path) -> None:
    """A script that ends while a child of it still runs is done; the child is ended."""
    script = started(make(f"sleep 1000 &\necho $! > {shared}/child\necho a 1\n"))
    assert outcome(script).values == [1_000_000]
    wait_until(lambda: not lives(int((shared / "child").read_text())))


def test_it_is_ended_with_the_agent(make: Make, started: Callable[..., Script], shared: Path) -> None:
    """Nothing is left running, nor as a zombie."""
    script = started(make(f"echo $$ > {shared}/own\nsleep 1000\n"))
    script.read()
    wait_until(lambda: (shared / "own").exists() and (shared / "own").read_text().endswith("\n"))
    script.close()
    assert not Path(f"/proc/{(shared / 'own').read_text().strip()}").exists()


# Which script is run, and as whom


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_others_can_write_it(make: Make, started: Callable[..., Script], mode: int) -> None:
    """A script that other users could change is not run."""
    path = make("echo a 1\n", mode=mode)
    with pytest.raises(OutsideError, match=r"script is not trusted: it is writable by others"):
        outcome(started(path))


def test_others_can_replace_it(make: Make, started: Callable[..., Script], place: Path) -> None:
    """A folder on the way counts as well, also behind a link; one as /tmp does not."""
    folder = place / "folder"
    folder.mkdir()
    make("echo a 1\n", name="folder/script")
    link = place / "link"
    link.symlink_to("folder/script")
    assert outcome(started(link)).values == [1_000_000]
    folder.chmod(0o1777)
    assert outcome(started(link)).values == [1_000_000]
    folder.chmod(0o777)
    with pytest.raises(OutsideError, match="link is not trusted: .*/folder is writable by others"):
        outcome(started(link))


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_it_belongs_to_another(make: Make, started: Callable[..., Script]) -> None:
    """Its owner can change it."""
    path = make("echo a 1\n")
    os.chown(path, 12345, 0)
    with pytest.raises(OutsideError, match="it belongs to another user"):
        outcome(started(path))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "gone cannot be used: .*gone: No such file or directory"),
        ("", "is not a file"),
        ("round", "too many links"),
        ("plain", "plain cannot be run: .*: Permission denied"),
    ],
)
def test_it_cannot_be_run(
    make: Make, started: Callable[..., Script], place: Path, name: str, said: str
) -> None:
    """A script that is not there is a failure and not an absence."""
    (place / "round").symlink_to("round")
    make("", name="plain", mode=0o644)
    with pytest.raises(OutsideError, match=said):
        outcome(started(place / name if name else place))


def test_remote_file_systems(tmp_path: Path) -> None:
    """A remote file is not touched, as that can hang; the root file system is exempt."""
    mounts = parse_mount_types(
        b"server:/ / nfs4 rw 0 0\n/dev/sda /data ext4 rw 0 0\ns:/opt /opt/far\\040away nfs rw 0 0\nbad\n"
    )
    assert mounts[2] == Mount("/opt/far away", "nfs")
    assert find_mount("/opt/far awayer", mounts) == mounts[0]
    assert find_mount("/data", mounts) == mounts[1]
    with pytest.raises(OutsideError, match="is on nfs, which can hang"):
        check_file("/opt/far away/script", 0, mounts)
    link = tmp_path / "link"
    link.symlink_to("/opt/far away/script")
    with pytest.raises(OutsideError, match="link is on nfs, which can hang"):
        check_file(str(link), os.geteuid(), mounts)


def test_interpreters(tmp_path: Path) -> None:
    """The interpreter in the first line of a script is checked too."""
    path = tmp_path / "x"
    for text, found in (
        (b"#! /usr/bin/env -S x\n", "/usr/bin/env"),
        (b"\x7fELF", ""),
        (b"#!", ""),
        (b"", ""),
    ):
        path.write_bytes(text)
        assert read_interpreter(str(path)) == found
    assert read_interpreter(str(tmp_path / "gone")) == ""


@given(st.binary(max_size=100))
def test_any_mounts(data: bytes) -> None:
    """Whatever stands there."""
    find_mount("/x/y", parse_mount_types(data))


@pytest.mark.skipif(not ROOT, reason="only root can be somebody else")
def test_identity(make: Make, started: Callable[..., Script], tmp_path: Path) -> None:
    """As nobody, or the user in the settings, without root's groups; as root only on request."""
    path = make("echo uid $(id -u)\necho gid $(id -g)\necho groups $(id -G | wc -w)\n")
    nobody = [int(number) * 1_000_000 for number in _passwd("nobody")]
    assert outcome(started(path)).values == [*nobody, 1_000_000]
    daemon = [int(number) * 1_000_000 for number in _passwd("daemon")]
    assert outcome(started(path, user="daemon")).values == [*daemon, 1_000_000]
    assert outcome(started(path, user="root")).values == [0, 0, 1_000_000]
    with pytest.raises(OutsideError, match="user nosuchuser is not in /etc/passwd"):
        outcome(started(path, user="nosuchuser"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("toor:x:0:0:::\nshort:x\n")
    with pytest.raises(OutsideError, match='toor is root; set user = "root" if that is intended'):
        find_identity(Host(str(tmp_path)), "toor")
    with pytest.raises(OutsideError, match="user short is not in"):
        find_identity(Host(str(tmp_path)), "short")


def _passwd(user: str) -> list[str]:
    for line in Path("/etc/passwd").read_text().splitlines():
        if line.startswith(user + ":"):
            return line.split(":")[2:4]
    pytest.skip(f"there is no user {user} here")


@pytest.mark.skipif(ROOT, reason="root can be anybody")
def test_nobody_else(make: Make, started: Callable[..., Script]) -> None:
    """An agent that is not root runs scripts as itself, and says so if another was asked for."""
    path = make("echo uid $(id -u)\n")
    assert outcome(started(path)).values == [os.getuid() * 1_000_000]
    with pytest.raises(OutsideError, match="only root's agent can run a script as root"):
        outcome(started(path, user="root"))


# In the agent


def sampled_until(sampler: Sampler, done: Callable[[], bool]) -> None:
    end, tick = time.monotonic() + PATIENCE, 0
    while not done():
        assert time.monotonic() < end
        sampler.sample(tick)
        tick += 1
        time.sleep(0.01)


def test_each_has_its_own_health(make: Make) -> None:
    """A script that fails says why until it succeeds, and disturbs no other; old figures are not shown."""
    good, bad = make("echo a 1\n", name="good"), make("echo a 1\n", name="bad")
    settings = Settings(
        external={
            "good": ExternalSettings((str(good),), interval=0.01, timeout=PATIENCE),
            "bad": ExternalSettings((str(bad),), interval=0.01, timeout=PATIENCE),
        }
    )
    logged: list[str] = []
    sampler = Sampler(Host(), settings, logged.append)
    health = {it.name: it for it in sampler.running}

    def shown() -> set[str]:
        return {rows.schema.set for rows in sampler.known() if rows.schema.set.startswith("external")}

    try:
        sampled_until(sampler, lambda: len(shown()) == 2)
        make("exit 3\n", name="bad.new").rename(bad)
        sampled_until(sampler, lambda: health["external_bad"].failures >= 2)
        good_before = health["external_good"].readings
        sampled_until(sampler, lambda: health["external_good"].readings > good_before)
        assert health["external_good"].failures == 0
        assert shown() == {"external_good"}
        told = f"{bad} failed with exit code 3"
        page = Exposition(openmetrics=False).render(sampler.known()).decode()
        assert f'joblens_collector_error{{collector="external_bad",error="{told}"}} 1\n' in page
        assert 'joblens_collector_success{collector="external_good"} 1\n' in page
        assert 'joblens_collector_success{collector="cpu"} 1\n' in page
        assert [line for line in logged if "external" in line] == [f"external_bad: {told}"]
        make("echo a 2\n", name="bad.new").rename(bad)
        sampled_until(sampler, lambda: len(shown()) == 2)
        assert sampler.latest["external_bad"].rows.values == [2_000_000]
    finally:
        sampler.close()


def test_looking_once(make: Make, tmp_path: Path) -> None:
    """`joblens agent --once` shows what scripts print too, and does not wait for those that do not end."""
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[external.room]\ncommand = ["{make("echo temperature 21.5", name="room")}"]\n'
        f'[external.slow]\ncommand = ["{make("sleep 1000", name="slow")}"]\ntimeout = 0.1\n'
    )
    command = [sys.executable, "-m", "joblens", "agent", "--once", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "joblens_external_room_temperature 21.5\n" in done.stdout
    assert "slow timed out after 0.1 s and was killed" in done.stdout
    assert "external_slow" in done.stderr


def test_nothing_is_run_of_a_recording(make: Make, tmp_path: Path) -> None:
    """Reading a recording of another machine starts nothing on this one."""
    settings = Settings(external={"x": ExternalSettings((str(make("echo a 1")),))})
    sampler = Sampler(Host(str(tmp_path)), settings, lambda message: None)
    assert not [it for it in sampler.running if it.name.startswith("external")]


def test_signals_of_children_are_not_ignored(make: Make, started: Callable[..., Script]) -> None:
    """The agent's parent may have set SIGCHLD to be ignored."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(OutsideError, match="exit code 3"):
            outcome(started(make("exit 3\n")))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_agent_goes_on_and_ends_it(make: Make, shared: Path, tmp_path: Path) -> None:
    """A script that hangs does not block; it is killed with the agent, and by new settings."""
    script = make(f"echo $$ > {shared}/$1.new\nmv {shared}/$1.new {shared}/$1\nexec sleep 1000\n")
    config = tmp_path / "agent.toml"
    text = 'interval = 0.1\nlisten = "127.0.0.1:0"\n[external.x]\ntimeout = 3600\ncommand = ["{}", "{}"]\n'
    config.write_text(text.format(script, "one"))
    command = [sys.executable, "-m", "joblens", "agent", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stderr
            address = agent.stderr.readline().split()[-1]
            wait_until((shared / "one").exists)
            ticks = ticks_of(address)
            wait_until(lambda: ticks_of(address) > ticks)
            config.write_text(text.format(script, "two"))
            agent.send_signal(signal.SIGHUP)
            wait_until((shared / "two").exists)
            assert not lives(int((shared / "one").read_text()))
            assert lives(int((shared / "two").read_text()))
        finally:
            agent.terminate()
        assert agent.wait(PATIENCE) == 0
    assert not lives(int((shared / "two").read_text()))


def ticks_of(address: str) -> float:
    with urllib.request.urlopen(address, timeout=PATIENCE) as page:  # noqa: S310 (our own agent)
        (line,) = re.findall(r"^joblens_agent_ticks_total (.*)$", page.read().decode(), re.MULTILINE)
    return float(line)
