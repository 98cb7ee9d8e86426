"""Settings, and files of other systems that are imported."""

from __future__ import annotations

import gzip
import io
import pickle
from contextlib import suppress
from pathlib import Path

from importers.epmt_files import (
    START,
    csv_text,
    job_files,
    process,
    python2,
    tsv_texts,
    write_folder,
    write_tar,
)
from importers.epmt_files import metadata as epmt_job
from importers.test_ldms import HEAD, MEMINFO, line, meminfo
from importers.test_sacct import HEADER
from importers.test_sacct import line as sacct_line
from joblens.cli.hub import load_hub
from joblens.cli.settings import load_agent
from joblens.core.config_files import load_layer, load_layers
from joblens.core.errors import ConfigError, MalformedError
from joblens.core.toml import parse_simple_toml
from joblens.hub.auth import read_key
from joblens.hub.server import _read_token
from joblens.hub.settings import parse_hub_settings
from joblens.hub.sink import check_options
from joblens.importers.epmt.metadata import parse_metadata, unpickle
from joblens.importers.epmt.process_data import read_chunks
from joblens.importers.ldms import import_ldms
from joblens.importers.sacct import read_sacct
from joblens.jobs.epmt_archives import import_epmt
from joblens.store.home import find_home, make_home
from joblens.store.lake.lake import Lake
from joblens.wire.credentials import read_token

from .scheduler import _recorded
from .target import Target, fresh, scratch

DOCS = Path(__file__).parents[2] / "docs"


def toml(data: bytes) -> None:
    path = scratch() / "joblens.toml"
    path.write_bytes(data)
    with suppress(ConfigError):
        parse_simple_toml(data.decode("utf-8", "replace"), "x")
    for read in (read_token, read_key, _read_token):
        with suppress(ConfigError):
            read(str(path))
    found = load_layer(str(path)).values
    layers = load_layers(str(path), {})
    with suppress(ConfigError):
        load_agent(layers)
    load_hub(layers)
    for name, table in parse_hub_settings(found, "x").sinks.items():
        check_options(name, table)


def _settings() -> list[bytes]:
    import re

    pages = [path.read_text() for path in (DOCS / "settings.md", DOCS / "hub.md")]
    return [it.encode() for page in pages for it in re.findall(r"```toml\n(.*?)```", page, re.S)]


def ldms(data: bytes) -> None:
    """Into the lake: what is sound of it, and the file beside it."""
    folder = fresh("ldms")
    (folder / "meminfo").write_bytes(data)
    (folder / "vmstat").write_text(HEAD + "nr_free_pages\n" + line("c1", 0, 5))
    done = import_ldms(Lake(folder / "lake"), [folder / "meminfo", folder / "vmstat"])
    assert done.sets.get("ldms_vmstat") == 1, done


def _ldms() -> list[bytes]:
    return [
        (MEMINFO + meminfo("c1", 0) + meminfo("c2", 0, job=4242)).encode(),
        (HEAD + 'a,"b,c"\n' + line("c1", 0, 1.5, "x") + HEAD + "b,c\n" + line("c1", 2, -5, "nan")).encode(),
        b"#Time_msec,Time_usec,producer,job_id,a\n1700000000123,456,c1,0,7\n#!ldms-kinds!\n",
    ]


def ldms_gz(data: bytes) -> None:
    """Compressed: the file itself, and the file of its header."""
    folder = fresh("ldms-gz")
    (folder / "meminfo.gz").write_bytes(data)
    (folder / "other.HEADER.gz").write_bytes(data)
    (folder / "other").write_text(line("c1", 0, 1, 2))
    (folder / "vmstat").write_text(HEAD + "nr_free_pages\n" + line("c1", 0, 5))
    done = import_ldms(Lake(folder / "lake"), [folder])
    assert done.sets.get("ldms_vmstat") == 1, done


def sacct_file(data: bytes) -> None:
    for name in ("past.txt", "past.gz"):
        path = scratch() / name
        path.write_bytes(data)
        try:
            list(read_sacct(path, "fox", lambda number, what: None, lambda count: None))
        except Exception as error:
            if type(error).__module__ != "joblens.core.errors":
                raise


def _past() -> list[bytes]:
    text = "\n".join([HEADER, sacct_line("42"), sacct_line("42.batch"), sacct_line("43_1", "44")]).encode()
    return [text, gzip.compress(text, mtime=0), *_recorded("slurm-*/sacct.json")[:2]]


def epmt_metadata(data: bytes) -> None:
    with suppress(MalformedError):
        assert parse_metadata("x", data).id
    with suppress(Exception):  # of any kind; what it makes is data
        unpickle(data)


def epmt_processes(data: bytes) -> None:
    """As both formats."""
    for name, headers in (("c1-papiex-1-0.csv", {}), ("c1-papiex.tsv", {"c1": EPMT_HEAD.encode()})):
        for chunk in read_chunks(iter([(name, "c1", io.BytesIO(data))]), headers, lambda where, what: None):
            assert int(chunk.threads.sum()) == len(next(iter(chunk.metrics.values()), []))


def epmt_archive(data: bytes) -> None:
    """The archive itself, and one beside it."""
    folder = fresh("epmt")
    (folder / "a.tgz").write_bytes(data)
    write_folder(folder / "b", job_files(EPMT_PROCESSES, epmt_job("sound")))
    done = import_epmt(make_home(find_home(str(folder / "home"))), [folder / "a.tgz", folder / "b"])
    assert done.jobs + done.known == done.files - done.unusable >= 1, done


EPMT_PROCESSES = [process(1), process(2, {}, {})]
EPMT_HEAD, EPMT_LINES = tsv_texts(EPMT_PROCESSES)


def _epmt_metadata() -> list[bytes]:
    old = {"job_pl_id": "7", "job_pl_start_ts": START, "job_pl_env": {"USER": "bob"}}
    return [pickle.dumps(epmt_job(), protocol=protocol) for protocol in range(5)] + [python2(old)]


def _epmt_archives() -> list[bytes]:
    path = scratch() / "seed.tgz"
    return [
        write_tar(path, job_files(EPMT_PROCESSES, epmt_job("7"), form)).read_bytes() for form in ("v1", "v2")
    ]


TARGETS = (
    Target("epmt-metadata", epmt_metadata, _epmt_metadata),
    Target(
        "epmt-processes", epmt_processes, lambda: [csv_text(EPMT_PROCESSES).encode(), EPMT_LINES.encode()]
    ),
    Target("epmt-archive", epmt_archive, _epmt_archives),
    Target("toml", toml, _settings),
    Target("ldms", ldms, _ldms),
    Target("ldms-gz", ldms_gz, lambda: [gzip.compress(text, mtime=0) for text in _ldms()]),
    Target("sacct-file", sacct_file, _past),
)
