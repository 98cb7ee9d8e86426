"""Small archives of EPMT, made up: metadata of either Python, process data of either format."""

from __future__ import annotations

import datetime
import gzip
import io
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UTC = datetime.timezone.utc
START = datetime.datetime(2020, 3, 1, 12, 0, 0, tzinfo=UTC)
STOP = datetime.datetime(2020, 3, 1, 12, 10, 0, tzinfo=UTC)
BEGIN_US = int(START.timestamp() * 1e6) + 1_000_000
PROCESS = ("tags", "hostname", "exename", "path", "args", "exitcode", "exitsignal", "pid", "generation",
           "ppid", "pgid", "sid", "numtids")  # fmt: skip
METRICS = ("usertime", "systemtime", "rssmax", "minflt", "rchar", "time_oncpu", "time_waiting", "starttime",
           "rdtsc_duration", "PERF_COUNT_SW_CPU_CLOCK")  # fmt: skip


def process(pid: int, *threads: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """One process; without threads it has one, with numbers that follow from its pid."""
    found: dict[str, Any] = {
        "tags": "op:build",
        "hostname": "c1",
        "exename": "gcc",
        "path": "/usr/bin/gcc",
        "args": f"-c {pid}.c",
        "exitcode": 0,
        "exitsignal": 0,
        "pid": pid,
        "generation": 0,
        "ppid": 1,
        "pgid": 1,
        "sid": 1,
        "start": BEGIN_US + pid,
        "end": BEGIN_US + pid + 2_000_000,
    }
    given = threads or ({},)
    usual = {"usertime": 1000 * pid, "systemtime": pid, "rssmax": 100 + pid, "minflt": 7, "rchar": 1 << 33,
             "time_oncpu": pid * 10**6, "time_waiting": 5, "starttime": 10**9, "rdtsc_duration": 4,
             "PERF_COUNT_SW_CPU_CLOCK": 3}  # fmt: skip
    return found | more | {"threads": [usual | dict(it) for it in given]}


def build_processes(build: float, link: float) -> list[dict[str, Any]]:
    """Two compilers and a linker, each an operation, with these seconds of CPU time."""

    def one(pid: int, cpu: float, **more: Any) -> dict[str, Any]:
        return process(pid, {"usertime": int(cpu * 1e6), "systemtime": 0}, **more)

    return [
        one(1, build, exename="cc1", args="a.c"),
        one(2, build / 2, exename="cc1", args="b.c"),
        one(3, link, exename="ld", args="", tags="op:link"),
    ]


def csv_text(processes: Sequence[Mapping[str, Any]], metrics: Sequence[str] = METRICS) -> str:
    """v1: a row for each thread."""
    lines = [",".join((*PROCESS, "tid", "start", "end", *metrics))]
    for it in processes:
        for number, thread in enumerate(it["threads"]):
            own = [str(it[name]) for name in PROCESS[:-1]] + [str(len(it["threads"]))]
            cells = own if number == 0 else [""] * len(PROCESS)
            rest = (it["pid"] + number, it["start"], it["end"], *(thread[name] for name in metrics))
            escaped = [cell.replace("\\", "\\\\").replace(",", "\\,").replace("\n", "\\\n") for cell in cells]
            lines.append(",".join([*escaped, *map(str, rest)]))
    return "\n".join(lines) + "\n"


def tsv_texts(processes: Sequence[Mapping[str, Any]], metrics: Sequence[str] = METRICS) -> tuple[str, str]:
    """v2: the header, and a line for each process."""
    names = [name for name in PROCESS if name != "args"] + ["start", "end", "args"]
    lines = []
    for it in processes:
        numbers = ",".join(str(thread[name]) for thread in it["threads"] for name in metrics)
        cells = {**it, "numtids": len(it["threads"])}
        lines.append("\t".join(["{" + numbers + "}", *(str(cells[name]) for name in names)]))
    return "\t".join(["{" + ",".join(metrics) + "}", *names]), "\n".join(lines) + "\n"


def metadata(id: str = "4242", **more: Any) -> dict[str, Any]:
    found = {
        "job_pl_id": id,
        "job_pl_submit_ts": START,
        "job_pl_start_ts": START,
        "job_pl_env": {"SLURM_JOB_NAME": "ocean", "API_TOKEN": "hidden", "PWD": "/work"},
        "job_pl_username": "alice",
        "job_pl_hostname": "c1",
        "job_el_stop_ts": STOP,
        "job_el_exitcode": 0,
        "job_el_reason": "none",
        "job_el_env": {},
        "job_jobname": "ocean",
        "job_tags": {"exp": "a", "seqno": 3},
        "annotations": {"note": "first run", "size": {"cells": 5}},
    }
    return found | more


def python2(plain: Mapping[str, Any]) -> bytes:
    """As Python 2 pickles a dict, in protocol 0: texts are bytes, and times have no zone."""

    def text(value: str) -> bytes:
        return b"S" + repr(value.encode()).removeprefix("b").encode() + b"\n"

    def render(value: Any) -> bytes:
        if isinstance(value, datetime.datetime):
            state = pickle.dumps(value.replace(tzinfo=None), protocol=4)
            raw: Any = value.replace(tzinfo=None).__reduce_ex__(2)[1][0]
            assert raw in state
            return b"cdatetime\ndatetime\n(S" + repr(raw).removeprefix("b").encode() + b"\ntR"
        if isinstance(value, dict):
            return b"(d" + b"".join(render(k) + render(v) + b"s" for k, v in value.items())
        return b"I%d\n" % value if isinstance(value, int) else text(value)

    return render(dict(plain)) + b"."


def job_files(
    processes: Sequence[Mapping[str, Any]], job: Mapping[str, Any] | bytes | None = None, form: str = "v1"
) -> dict[str, bytes]:
    """The files of an archive, collated."""
    plain = metadata() if job is None else job
    files = {"job_metadata": plain if isinstance(plain, bytes) else pickle.dumps(plain)}
    if form == "v1":
        files["c1-collated-papiex-4242-0.csv"] = csv_text(processes).encode()
    else:
        head, lines = tsv_texts(processes)
        files |= {"c1-papiex.tsv": lines.encode(), "c1-papiex-header.tsv": head.encode()}
    return files


def write_tar(path: Path, files: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    """A compressed archive; a TarInfo is a member without content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in files.items():
            if isinstance(data, tarfile.TarInfo):
                archive.addfile(data)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    path.write_bytes(gzip.compress(raw.getvalue(), mtime=0))
    return path


def write_folder(path: Path, files: Mapping[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path
