"""Reads the `gpu` collector once per line on stdin, and prints what came as one line of JSON.

A process of its own, because the loader looks for libnvidia-ml.so.1 in an environment that it reads once.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import threading
from typing import Any

from joblens.core.host import Host
from joblens.core.model import ABSENT, Rows

# By its name: the package has a function of the same name.
frame: Any = importlib.import_module("joblens.collectors.gpu.collector")


def main() -> None:
    options = json.loads(sys.argv[1])
    # As on a node, wherever the tests run: in a container pids are others than the driver's.
    contained = options.pop("contained", False)
    Host.counts_pids_as_kernel = lambda self: not contained  # type: ignore[method-assign]
    options.setdefault("timeout", 60)  # the machine may be busy
    tree = options.pop("amd", None)
    if tree:  # the other vendor's own code, on a tree in place of this machine's
        vendors = dict(frame._VENDORS)
        amd = vendors["amd"]
        frame._VENDORS = tuple({**vendors, "amd": lambda _: amd(Host(tree))}.items())
    read = frame.gpus(Host("/"), **options)
    last: list[tuple[Any, Any]] = []
    for _ in sys.stdin:
        try:
            sets = read()
        except FileNotFoundError as error:
            print(json.dumps({"absent": str(error)}), flush=True)
            continue
        now = [(rows.schema, rows.keys) for rows in sets]
        same = now == last and all(keys is before for (_, keys), (_, before) in zip(now, last))
        last = now
        found = {"sets": {rows.schema.set: as_data(rows) for rows in sets}, "same": same, "alive": alive()}
        print(json.dumps({**found, "threads": threading.active_count()}), flush=True)


def as_data(rows: Rows) -> list[dict[str, Any]]:
    return [
        {
            **dict(zip(rows.schema.labels, key)),
            **{
                column.name: column.in_base_units(value)
                for column, value in zip(rows.schema.columns, rows.row(number))
                if value != ABSENT
            },
        }
        for number, key in enumerate(rows.keys)
    ]


def alive() -> int:
    """Return how many objects of the stand-in are allocated and not freed."""
    try:
        return int(ctypes.CDLL("libnvidia-ml.so.1").standin_alive())
    except (OSError, AttributeError):
        return 0


if __name__ == "__main__":
    main()
