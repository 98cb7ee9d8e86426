from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from joblens.cli import hub_client as pages
from joblens.cli.hub import load_hub
from joblens.cli.processes import Part, Parts
from joblens.core.config import split_address
from joblens.core.config_files import load_layers
from joblens.core.errors import JoblensError, OutsideError, UsageError, printable
from joblens.core.files import write_whole
from joblens.core.json_file import parse_json
from joblens.hub.settings import INFERRED

EXAMPLE = """example:
  joblens up
  joblens up --detach --interval 5
  joblens up --stop"""

_PERIOD = 2.0  # seconds from batch to batch: on one machine it costs little, and who tries it sees it soon
_PATIENCE = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = "where the {} listens (default %(default)s)"
    parser.add_argument("--listen", default=pages.AGENT, metavar="HOST:PORT", help=where.format("agent"))
    parser.add_argument("--hub-listen", default=pages.HUB, metavar="HOST:PORT", help=where.format("hub"))
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between two ticks (default 1)")
    parser.add_argument("--config", metavar="F", help="settings of both, a TOML file")
    parser.add_argument("--home", metavar="DIR", help="the store (default JOBLENS_HOME and the like)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--detach", action="store_true", help="in the background")
    how.add_argument("--stop", action="store_true", help="end those that run in the background, or elsewhere")


def run(options: argparse.Namespace) -> int:
    from joblens.store.home import find_home, make_home

    home = make_home(find_home(options.home)).path
    folder = home / "up"
    folder.mkdir(mode=0o700, exist_ok=True)
    split_address(options.listen, name="--listen")
    split_address(options.hub_listen, name="--hub-listen")
    if options.stop:
        return _stop(folder)
    if options.detach:
        return _detach(options, folder)
    return _run(options, home, folder)


def _run(options: argparse.Namespace, home: Path, folder: Path) -> int:
    with _only_one(folder):
        hub, agent = make_parts(options, home, folder)
        with Parts([hub, agent], _say) as parts:
            parts.start()
            if not parts.asked:
                about = {
                    "pid": os.getpid(),
                    "host": os.uname().nodename,
                    "agent": agent.address,
                    "hub": hub.address,
                    "store": str(home),
                }
                write_whole(str(folder / "up.json"), json.dumps(about).encode())
                print("\n".join(describe(about, "Ctrl-C ends both")), flush=True)
                parts.watch()
        _say("joblens up: agent and hub have ended")
    return 0


def make_parts(options: argparse.Namespace, home: Path, folder: Path) -> tuple[Part, Part]:
    store = {"JOBLENS_HOME": str(home), "STATE_DIRECTORY": str(folder)}  # where the agent's spool is

    def hub_words() -> list[str]:
        listen = hub.address.partition("//")[2] or options.hub_listen  # the same port when it starts again
        return ["hub", "--listen", listen, *config, *_scheduler(options.config)]

    def agent_words() -> list[str]:
        listen = agent.address.partition("//")[2].removesuffix("/metrics") or options.listen
        interval = [] if options.interval is None else ["--interval", str(options.interval)]
        return [
            "agent",
            "--listen",
            listen,
            *interval,
            *(config or _own_config(folder)),
            "--push",
            hub.address,
        ]

    config = ["--config", options.config] if options.config else []
    hub = Part("hub", hub_words, r"^joblens hub: takes batches at (\S+)$", store)
    agent = Part("agent", agent_words, r"^joblens agent: metrics at (\S+)$", store)
    return hub, agent


def _scheduler(config: str | None) -> list[str]:
    """Jobs without a queue get records, unless the settings say of whom else, or `none`."""
    try:
        named = load_hub(load_layers(config, os.environ)).scheduler
    except (JoblensError, OSError):  # of which the hub tells
        return []
    return [] if named else ["--scheduler", INFERRED]


def _own_config(folder: Path) -> list[str]:
    path = folder / "agent.toml"
    path.write_text(f"[push]\nperiod = {_PERIOD}\n\n[collectors.processes]\ninterval = {_PERIOD / 2}\n")
    return ["--config", str(path)]


def describe(about: dict[str, Any], end: str) -> list[str]:
    return [
        f"agent    {about['agent']}",
        f"hub      {about['hub']}",
        f"store    {about['store']}",
        f"look     joblens ls, joblens top, joblens jobs; {end}",
    ]


def _detach(options: argparse.Namespace, folder: Path) -> int:
    """The same command in a session of its own. What it says is in a file."""
    if not _is_running(folder):
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "joblens", "up", *_words(options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _wait_for_start(folder, process)
    print("\n".join(describe(_about(folder), "joblens up --stop ends both")), flush=True)
    return 0


def _words(options: argparse.Namespace) -> list[str]:
    given = {
        "--listen": options.listen,
        "--hub-listen": options.hub_listen,
        "--interval": options.interval,
        "--config": options.config,
        "--home": options.home,
    }
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def _wait_for_start(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with suppress(OutsideError):
            if _about(folder)["pid"] == process.pid:
                return
        time.sleep(0.05)
    said = (folder / "log").read_text(errors="replace").strip().splitlines()
    raise OutsideError(f"it did not start: {said[-1].removeprefix('joblens: ') if said else 'no word why'}")


def _about(folder: Path) -> dict[str, Any]:
    """What runs here. Raises OutsideError while that is not known."""
    try:
        found = parse_json((folder / "up.json").read_bytes())
        if isinstance(found, dict) and {"pid", "host", "agent", "hub", "store"} <= found.keys():
            return found
    except (OSError, ValueError):
        pass
    raise OutsideError(f"joblens up is starting or ending in {folder}")


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Two in one folder would share a spool. The lock goes with the process, however that ends."""
    lock = _open_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UsageError(f"joblens up runs already in {folder.parent}; joblens up --stop ends it") from None
    try:
        (folder / "up.json").unlink(missing_ok=True)
        yield
    finally:
        (folder / "up.json").unlink(missing_ok=True)
        os.close(lock)


def _is_running(folder: Path) -> bool:
    lock = _open_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _open_lock(folder: Path) -> int:
    return os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _stop(folder: Path) -> int:
    end = time.monotonic() + _PATIENCE
    asked = 0
    while _is_running(folder):
        with suppress(OutsideError, ProcessLookupError):
            about = _about(folder)
            if about["host"] != os.uname().nodename:
                raise UsageError(f"joblens up runs on {about['host']}; stop it there")
            if about["pid"] != asked:  # once: a second time means at once
                os.kill(about["pid"], signal.SIGTERM)
                asked = about["pid"]
        if time.monotonic() > end:
            raise OutsideError(f"process {asked} does not end")
        time.sleep(0.05)
    print("agent and hub have ended" if asked else "joblens up does not run here", file=sys.stderr)
    return 0


def _say(line: str) -> None:
    with suppress(OSError):  # nobody may be left who reads it
        print(printable(line), file=sys.stderr, flush=True)
