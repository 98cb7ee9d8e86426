"""What batch systems answer, and what users write on the command line about hosts and jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from joblens.analysis.window_report import parse_moment as parse_part
from joblens.cli.hub_client import parse_address
from joblens.cli.slurm_check import parse_config
from joblens.core.errors import JoblensError
from joblens.run.facts import parse_tags
from joblens.schedulers import tres
from joblens.schedulers.flux import parse_flux
from joblens.schedulers.nodelist import compress, expand
from joblens.schedulers.parse_result import ParseResult
from joblens.schedulers.pbs import parse_pbs
from joblens.schedulers.slurm import fields as slurm_text
from joblens.schedulers.slurm.json_output import parse_sacct_json
from joblens.schedulers.slurm.sacct import COLUMNS, parse_sacct
from joblens.schedulers.slurm.scontrol import parse_scontrol
from joblens.schedulers.slurm.squeue import parse_squeue
from joblens.store.catalog.listing import parse_time as parse_moment
from joblens.usermode.hosts import parse_hosts
from schedulers.recording import MARK, RECORDED

from .target import Target

_LARGEST_SEED = 20_000


def _recorded(*patterns: str) -> list[bytes]:
    paths = [path for pattern in patterns for path in sorted(RECORDED.glob(pattern))]
    return [path.read_bytes()[:_LARGEST_SEED] for path in paths] + [path.read_bytes() for path in paths[:1]]


def _small_json(pattern: str) -> list[bytes]:
    """Whole, with few jobs."""
    found = []
    for path in sorted(RECORDED.glob(pattern)):
        plain = json.loads(path.read_bytes())
        if isinstance(plain.get("jobs"), list):
            plain["jobs"] = plain["jobs"][:3]
        found.append(json.dumps(plain).encode())
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _check(told: ParseResult) -> None:
    for job in told.jobs:
        job.to_dict()


def _json_target(name: str, parse: Callable[[str], ParseResult], pattern: str) -> Target:
    return Target(name, lambda data: _check(parse(_text(data))), lambda: _small_json(pattern))


def squeue(data: bytes) -> None:
    _check(parse_squeue(_text(data), MARK))


def sacct(data: bytes) -> None:
    text = _text(data)
    _check(parse_sacct(text, MARK, COLUMNS))


def scontrol(data: bytes) -> None:
    _check(parse_scontrol(_text(data)))


def nodelist(data: bytes) -> None:
    names = expand(_text(data))
    assert set(expand(compress(names))) == set(names) or any("," in name or "[" in name for name in names)


def words(data: bytes) -> None:
    """Small parsers of single values."""
    text = _text(data)
    for parse in (
        tres.parse_memory, tres.parse_tres, tres.parse_gres_gpus, slurm_text.parse_time,
        slurm_text.parse_duration,
        slurm_text.parse_limit, slurm_text.parse_exit, slurm_text.parse_state, slurm_text.parse_job_id,
        parse_config, parse_hosts, parse_address, parse_moment, lambda it: parse_tags([it]),
        lambda it: parse_part(it, 1.7e9),
        lambda it: slurm_text.parse_span(*it.split("|")[:3]) if "|" in it else None,
    ):  # fmt: skip
        with suppress(JoblensError):
            parse(text)


_WORDS = [
    b"cpu=4,mem=8G,node=1,billing=4,gres/gpu=2,gres/gpu:a100=2", b"4000M", b"8Gc", b"gpu:a100:2(IDX:0-1)",
    b"2026-11-16T10:00:00", b"1-02:03:04.567", b"UNLIMITED", b"0:15", b"CANCELLED by 1000", b"4200_[3-6%2]",
    b"4300+1", b"SlurmctldHost[0]  = a\nProlog[1] = /x\n", b"c[1-3,7],d1 e2", b"http://[::1]:9478/x",
    b"3 days",    b"2026-11-16T10:00:00|2026-11-16T11:00:00|01:00:00", b"key:value", b"1794823200",
]  # fmt: skip

TARGETS = (
    Target("squeue", squeue, lambda: _recorded("slurm-*/squeue.txt")),
    Target("sacct", sacct, lambda: _recorded("slurm-*/sacct.txt")),
    Target("scontrol", scontrol, lambda: _recorded("slurm-*/scontrol*.txt")),
    _json_target("sacct-json", parse_sacct_json, "slurm-*/sacct.json"),
    _json_target("flux", parse_flux, "flux-*/*.json"),
    _json_target("pbs", parse_pbs, "pbs-*/*.json"),
    Target(
        "nodelist", nodelist, lambda: [b"c[1-3,07,009-011],d1", b"a[1-2]b[3-4]", b"rack7-nid[000001-000016]"]
    ),
    Target("words", words, lambda: _WORDS),
)
