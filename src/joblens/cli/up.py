from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from joblens.attribution.owners import UP_VARIABLE
from joblens.cli import hub_client
from joblens.cli.daemon import add_ready_fd, announce
from joblens.cli.hub import load_hub
from joblens.cli.processes import Daemon, Daemons
from joblens.core.config import split_address
from joblens.core.config_files import load_layers
from joblens.core.errors import JoblensError, OutsideError, UsageError, printable
from joblens.core.files import write_whole
from joblens.core.json_file import parse_json
from joblens.core.process import Child
from joblens.core.python import python_command
from joblens.hub.settings import INFERRED

EXAMPLE = """example:
  joblens up
  joblens up --detach --interval 5
  joblens up --stop"""

_PERIOD = 2.0  # seconds between batches: cheap on one machine, and samples are soon visible
_STOP_SECONDS = 60.0
_START_SECONDS = 180.0  # longer than the daemons may take
_END_SECONDS = 10.0
_LONGEST_SOCKET = 90  # bytes of its path, while it is created too


class Running(NamedTuple):
    """A running `joblens up`, as up.json describes it."""

    pid: int
    host: str
    agent: str
    hub: str
    store: str
    serve: str  # its socket


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = "address on which the {} listens (default %(default)s)"
    parser.add_argument("--listen", default=hub_client.AGENT, metavar="HOST:PORT", help=where.format("agent"))
    parser.add_argument("--hub-listen", default=hub_client.HUB, metavar="HOST:PORT", help=where.format("hub"))
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between two ticks (default 1)")
    parser.add_argument("--config", metavar="F", help="TOML file with the settings of all")
    parser.add_argument("--home", metavar="DIR", help="the store (default JOBLENS_HOME and the like)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--detach", action="store_true", help="run in the background")
    how.add_argument("--stop", action="store_true", help="end those in the background or another terminal")
    add_ready_fd(parser)


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
    with _locked(folder):
        hub, agent, serve = make_daemons(options, home, folder)
        with Daemons([hub, agent, serve], _say) as daemons:
            daemons.start()
            if not daemons.signals:
                running = Running(
                    os.getpid(), os.uname().nodename, agent.address, hub.address, str(home), serve.address
                )
                write_whole(str(folder / "up.json"), json.dumps(running._asdict()).encode())
                if options.ready_fd is None:
                    print(describe(running, "Ctrl-C ends all"), flush=True)
                else:
                    announce("up", "", hub.address, options.ready_fd)
                daemons.watch()
        _say("joblens up: agent, hub and service have ended")
    return 0


def make_daemons(options: argparse.Namespace, home: Path, folder: Path) -> tuple[Daemon, Daemon, Daemon]:
    env = {"JOBLENS_HOME": str(home), UP_VARIABLE: str(os.getpid())}
    env["STATE_DIRECTORY"] = str(folder)  # where the agent's spool is

    def hub_words() -> list[str]:
        listen = hub.address.partition("//")[2] or options.hub_listen  # the same port after a restart
        return ["hub", "--listen", listen, *config, *_scheduler(options.config)]

    def agent_words() -> list[str]:
        listen = agent.address.partition("//")[2].removesuffix("/metrics") or options.listen
        interval = [] if options.interval is None else ["--interval", str(options.interval)]
        own = config or _own_config(folder)
        return ["agent", "--listen", listen, *interval, *own, "--push", hub.address]

    def serve_words() -> list[str]:
        return ["serve", "--socket", _socket(folder), "--home", str(home), "--hub", hub.address, *config]

    config = ["--config", options.config] if options.config else []
    hub, agent = Daemon("hub", hub_words, env), Daemon("agent", agent_words, env)
    return hub, agent, Daemon("serve", serve_words, {**env, "STATE_DIRECTORY": str(home / "serve")})


def _socket(folder: Path) -> str:
    """Return the path of the service's socket: in the folder, unless that is too long for one (unix(7))."""
    path = str(folder / "serve.sock")
    if len(os.fsencode(path)) <= _LONGEST_SOCKET:
        return path
    from joblens.store.home import local_folder

    return str(local_folder() / f"serve-{zlib.crc32(os.fsencode(path)):08x}.sock")


def _scheduler(config: str | None) -> list[str]:
    """Make records of jobs without a queue, unless the settings name a scheduler or `none`."""
    try:
        named = load_hub(load_layers(config, os.environ)).scheduler
    except (JoblensError, OSError):  # the hub reports it
        return []
    return [] if named else ["--scheduler", INFERRED]


def _own_config(folder: Path) -> list[str]:
    path = folder / "agent.toml"
    path.write_text(f"[push]\nperiod = {_PERIOD}\n\n[collectors.processes]\ninterval = {_PERIOD / 2}\n")
    return ["--config", str(path)]


def describe(running: Running, end: str) -> str:
    return (
        f"agent    {running.agent}\n"
        f"hub      {running.hub}\n"
        f"store    {running.store}\n"
        f"service  {running.serve}\n"
        f"try      joblens ls, joblens top, joblens jobs; {end}"
    )


def _detach(options: argparse.Namespace, folder: Path) -> int:
    """Run the same command in a session of its own, with its output in a file."""
    if not _is_running(folder):
        with (folder / "log").open("wb") as log:
            command = python_command("joblens", "up", *_words(options))
            child = Child(command, log=log, announces=True, cwd=None)
        if child.wait_until_ready(_START_SECONDS) is None:
            child.end(_END_SECONDS)
            lines = (folder / "log").read_text(errors="replace").strip().splitlines()
            last = lines[-1].removeprefix("joblens: ") if lines else "no output"
            raise OutsideError(f"joblens up did not start: {last}")
    print(describe(_find_running(folder), "joblens up --stop ends all"), flush=True)
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


def _find_running(folder: Path) -> Running:
    """Raises OutsideError while up.json is not there."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = parse_json((folder / "up.json").read_bytes())
        return Running(int(found["pid"]), *(str(found[name]) for name in Running._fields[1:]))
    raise OutsideError(f"joblens up is starting or ending in {folder}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two in one folder would share a spool. The kernel releases the lock when the process ends."""
    lock = _open_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UsageError(
            f"joblens up is already running in {folder.parent}; end it with joblens up --stop"
        ) from None
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
    end = time.monotonic() + _STOP_SECONDS
    signalled = 0
    while _is_running(folder):
        with suppress(OutsideError, ProcessLookupError):
            running = _find_running(folder)
            if running.host != os.uname().nodename:
                raise UsageError(f"joblens up is running on {running.host}; stop it there")
            if running.pid != signalled:  # once: a second signal kills
                os.kill(running.pid, signal.SIGTERM)
                signalled = running.pid
        if time.monotonic() > end:
            raise OutsideError(f"process {signalled} has not ended after {_STOP_SECONDS:g} s")
        time.sleep(0.05)
    print(
        "agent, hub and service have ended" if signalled else "joblens up is not running here",
        file=sys.stderr,
    )
    return 0


def _say(line: str) -> None:
    with suppress(OSError):  # a closed terminal or pipe
        print(printable(line), file=sys.stderr, flush=True)
