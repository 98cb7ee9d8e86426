from __future__ import annotations

import argparse
import os
import re
import sys
from functools import partial

from joblens.agent.job_lifetime import JobLifetime
from joblens.agent.loop import Agent
from joblens.cli.daemon import add_ready_fd, allow_open_files, announce, log
from joblens.cli.settings import KNOWN, load_agent
from joblens.core.config import Settings, parse_settings
from joblens.core.config_files import load_layers
from joblens.core.host import Host
from joblens.core.secrets import MASKS, add_masks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from joblens.core.toml import Table

EXAMPLE = """example:
  joblens agent --interval 1 --listen 127.0.0.1:9477
  joblens agent --once"""

HUB, _HUB_PORT = "JOBLENS_HUB", 9478
_log = partial(log, "agent")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between two samples (default 1)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="address of /metrics (default 127.0.0.1:9477)")
    parser.add_argument("--push", metavar="URL", help="the hub to send samples to")
    parser.add_argument("--config", metavar="F", help="settings file (TOML; default: see `joblens config`)")
    parser.add_argument(
        "--while-jobs", action="store_true", help="exit after the last job that Slurm's prolog has announced"
    )
    parser.add_argument(
        "--linger",
        type=float,
        default=5.0,
        metavar="S",
        help="with --while-jobs: seconds to wait before that (default %(default)g)",
    )
    add_ready_fd(parser)
    parser.add_argument("--once", action="store_true", help="print one sample and exit")
    parser.add_argument(
        "--root", default="/", metavar="DIR", help="sample a recording instead of this machine"
    )


def run(options: argparse.Namespace) -> int:
    masks = os.environ.get(MASKS, "")
    settings = _load(options, masks)
    allow_open_files()
    agent = Agent(Host(options.root), settings, _log)
    if options.once:
        agent.sample()
        agent.sampler.wait_for_scripts()
        sys.stdout.write(agent.render().decode("utf-8"))
        agent.close()
        return 0
    if not settings.token_file and not settings.listen.startswith(("127.", "[::1]", "localhost")):
        _log(f"{settings.listen} is readable by everyone who can reach it; set token_file to require a token")
    host = settings.listen.rpartition(":")[0]
    ready = lambda port: announce(  # noqa: E731
        "agent", "metrics at", f"http://{host}:{port}/metrics", options.ready_fd
    )
    if not options.while_jobs:
        agent.run(lambda: _load(options, masks), ready)
        return 0
    jobs = JobLifetime(settings.attribution.job_files, options.linger)
    if not jobs.begin():
        _log("another agent already samples these jobs")
        return 0
    try:
        is_over = lambda: jobs.is_over(agent.sampler.attribution.forgotten)  # noqa: E731
        agent.run(lambda: _load(options, masks), ready, is_over)
    finally:
        jobs.end()
    return 0


def _load(options: argparse.Namespace, masks: str) -> Settings:
    """`masks`: the variable at the start. Those of settings that were loaded before are forgotten."""
    settings = load_agent(load_layers(options.config, os.environ))
    add_masks(settings.mask, masks)
    chosen: Table = {
        name: getattr(options, name) for name in ("interval", "listen") if getattr(options, name) is not None
    }
    hub = options.push
    if hub is None and not settings.push.url and os.environ.get(HUB):
        hub = hub_url(os.environ[HUB])
    if hub is not None:
        chosen["push"] = {"url": hub}
    checked = parse_settings(chosen, "", KNOWN)  # the same checks as for the file
    return settings._replace(
        interval=checked.interval if "interval" in chosen else settings.interval,
        listen=checked.listen if "listen" in chosen else settings.listen,
        push=settings.push._replace(url=checked.push.url) if hub is not None else settings.push,
    )


def hub_url(text: str) -> str:
    """Complete a host name, with or without a port, to a URL."""
    if not text or "://" in text:
        return text
    return f"http://{text}" if re.search(r":[0-9]+$", text) else f"http://{text}:{_HUB_PORT}"
