"""`energy`: energy counters and power readings of the node's meters.

Meters overlap: a processor's package includes its cores, the meter of a node includes all. The label
`part_of` says so; joblens.analysis.energy selects what may be added.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Tuple

from joblens.collectors.energy import cray as energy_cray
from joblens.collectors.energy import hwmon as energy_hwmon
from joblens.collectors.energy import rapl as energy_rapl
from joblens.collectors.energy.reading import PACKAGE, SCHEMA, Source, node_meter
from joblens.collectors.number_files import natural
from joblens.collectors.timeout import with_timeout
from joblens.core.host import Host
from joblens.core.model import Key, Rows

_FOLDERS = (energy_cray.FOLDER, energy_hwmon.FOLDER, energy_rapl.FOLDER)


@with_timeout(energy_cray.FOLDER, energy_hwmon.FOLDER)  # ACPI's meters query a management controller
def energy(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    folders: Dict[str, List[str]] = {}
    sources: List[Source] = []
    keys: Tuple[Key, ...] = ()
    counters: Dict[str, energy_rapl.Counter] = {}

    def read() -> Tuple[Rows, ...]:
        nonlocal folders, sources, keys
        found = {folder: sorted(host.list_if_there(folder), key=natural) for folder in _FOLDERS}
        if found != folders:
            sources = find_sources(host, found, counters)
            folders, keys = found, tuple(key for source in sources for key in source.keys)
        if not keys:
            raise FileNotFoundError(2, "no energy or power meter", host.root + energy_rapl.FOLDER)
        return (Rows(SCHEMA, keys, [value for source in sources for value in source.read()]),)

    return read


def find_sources(
    host: Host, folders: Dict[str, List[str]], counters: Dict[str, energy_rapl.Counter]
) -> List[Source]:
    cray = energy_cray.find_cray(host, folders[energy_cray.FOLDER])
    chips = folders[energy_hwmon.FOLDER]
    meters = energy_hwmon.find_meters(host, chips, node_meter(cray))
    node = node_meter(cray, meters)
    rapl = energy_rapl.find_rapl(host, folders[energy_rapl.FOLDER], node, counters)
    if any(key[1] == PACKAGE for key in rapl.keys):  # AMD's driver has the same counters
        return [cray, meters, rapl]
    return [cray, meters, rapl, energy_hwmon.find_sockets(host, chips, node)]
