"""NVIDIA cards through NVML, and `nvidia-smi --query-gpu`; both are test doubles without a card.

`python -m bench.gpus FOLDER` is the loop itself, with the library in LD_LIBRARY_PATH, the programs in FOLDER.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

from bench.children import ROOT, BenchError, environment
from bench.interpreters import Interpreter
from bench.table import Section, compare
from joblens.collectors.gpu.collector import gpus
from joblens.core.host import Host

_CARDS = 8
_ROUNDS, _TURNS = 30, 10
_LONGEST = 120.0
_QUERY = (
    "index,uuid,name,pci.bus_id,utilization.gpu,utilization.memory,memory.used,memory.total,power.draw,"
    "power.limit,clocks.sm,clocks.mem,temperature.gpu,fan.speed,clocks_event_reasons.active"
)
_LINE = "%u, GPU-0, NVIDIA H100, 00000000:18:00.0, 87, 41, 30720, 81559, %u.00, %u, %u, %u, %u, 0, 4\\n"
# With ASK it opens the library and asks it, as the real one does each time; without, it only prints.
_PROGRAM = """#include <stdio.h>
int nvmlInitWithFlags(unsigned);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetPowerUsage(void *, unsigned *);
int nvmlDeviceGetEnforcedPowerLimit(void *, unsigned *);
int nvmlDeviceGetClockInfo(void *, unsigned, unsigned *);
int nvmlDeviceGetTemperature(void *, unsigned, unsigned *);
int main(void)
{
    unsigned v[5] = {612345, 700000, 1980, 2619, 66};
#ifdef ASK
    if (nvmlInitWithFlags(0)) return 9;
#endif
    for (unsigned n = 0; n < CARDS; n++) {
#ifdef ASK
        void *card;
        if (nvmlDeviceGetHandleByIndex_v2(n, &card) || nvmlDeviceGetPowerUsage(card, &v[0])
            || nvmlDeviceGetEnforcedPowerLimit(card, &v[1]) || nvmlDeviceGetClockInfo(card, 1, &v[2])
            || nvmlDeviceGetClockInfo(card, 2, &v[3]) || nvmlDeviceGetTemperature(card, 0, &v[4])) return 15;
#endif
        printf(LINE, n, v[0] / 1000, v[1] / 1000, v[2], v[3], v[4]);
    }
    return 0;
}
"""


def measure_gpus(pythons: list[Interpreter]) -> list[Section]:
    """Use the Python that runs the bench: the distribution's has no binding."""
    with tempfile.TemporaryDirectory() as name:
        found = _run(Path(name))
    lines = [
        compare(f"{_CARDS} cards / nvidia-smi that asks", "own", found["all"], found["asks"]),
        compare(f"{_CARDS} cards / nvidia-smi that prints", "own", found["all"], found["prints"]),
        compare("imports and first reading / the one that asks", "own", found["first"], found["asks"]),
    ]
    notes = [
        "of the child too; library and nvidia-smi are stand-ins, a real driver takes longer in both",
        "the one that asks opens the library each time, as the real one does, and asks it for five figures",
        "joblens asks for all columns, the processes and GPM; --query-gpu has neither of the latter two",
    ]
    return [Section("NVIDIA's cards, CPU per sample", lines, notes)]


def _run(folder: Path) -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchError("the stand-ins need a C compiler")
    (folder / "smi.c").write_text(_PROGRAM)
    (folder / "state").write_text(_state())
    library = folder / "libnvidia-ml.so.1"
    shape = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library)]
    build = [compiler, "-std=c11", "-O2"]
    subprocess.run([*build, *shape, str(ROOT / "tests/gpu/nvml.c")], check=True)
    build += [f"-DCARDS={_CARDS}", f'-DLINE="{_LINE}"', str(folder / "smi.c")]
    subprocess.run([*build, "-DASK", str(library), "-o", str(folder / "asks")], check=True)
    subprocess.run([*build, "-o", str(folder / "prints")], check=True)
    env = {**environment(), "LD_LIBRARY_PATH": str(folder), "JOBLENS_NVML": str(folder / "state")}
    command = [sys.executable, "-m", "bench.gpus", str(folder)]
    ended = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, timeout=_LONGEST, check=True)
    return json.loads(ended.stdout)


def _state() -> str:
    """Describe eight data centre cards with two processes each."""
    lines = [f"count {_CARDS}"]
    for n in range(_CARDS):
        card = f"""uuid GPU-{n}|name NVIDIA H100|bus 00000000:{n}8:00.0|minor {n}|busy 87 41|events 1
            |memory {80 << 30} {600 << 20} {30 << 30}|power 612345|limit 700000|energy 987654321|clock 1980
            |memory_clock 2619|temperature 66|reasons 4|field.3 0|field.4 0|field.74 5|field.75 0|field.82 71
            |field.138 2048|field.139 1024|mig 0|gpm 1|gpm.1 87|gpm.2 80|gpm.3 40|gpm.5 12|gpm.10 70
            |compute {1000 + n} {20 << 30}|compute {2000 + n} {9 << 30}|usage {1000 + n} 1000 80 30"""
        lines += [f"{n}.{line.strip()}" for line in card.split("|")]
    return "\n".join(lines) + "\n"


def _cpu() -> float:
    """Return CPU seconds of this process and of its waited-for children."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(it.ru_utime + it.ru_stime for it in map(resource.getrusage, kinds))


def _time(work: Callable[[], None], turns: int) -> float:
    begin = _cpu()
    for _ in range(turns):
        work()
    return (_cpu() - begin) / turns


def main() -> None:
    def run(name: str) -> Callable[[], None]:
        command = [os.path.join(sys.argv[1], name), f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]

        def run_once() -> None:
            ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            rows = [line.split(", ") for line in ended.stdout.decode().splitlines()]
            assert len(rows) == _CARDS

        return run_once

    def read_all() -> None:
        rows, *_ = read()
        assert len(rows.keys) >= _CARDS

    read = gpus(Host("/"))
    first = _time(read_all, 1)
    contenders = {"all": read_all, "asks": run("asks"), "prints": run("prints")}
    for work in contenders.values():
        work()
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_ROUNDS):
        for name, work in contenders.items():
            figures[name].append(_time(work, _TURNS))
    print(json.dumps({**figures, "first": [first] * _ROUNDS}))


if __name__ == "__main__":
    main()
