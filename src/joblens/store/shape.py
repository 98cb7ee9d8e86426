"""What a job's record and the facts of one on its way must look like for others to rely on it.

What is missing is unknown and becomes None; what has another type than it should is an error; what is not
known here is left as it is, for a later joblens may have more to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_LATEST = 253_402_300_800  # the year 10000, which no calendar here can show
Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -(2.0**63) < value < 2.0**63


def _amount(value: Any) -> bool:
    return _number(value) and value >= 0


def _whole(value: Any) -> bool:
    return type(value) is int and _number(value)


def _moment(value: Any) -> bool:
    return _number(value) and 0 <= value < _LATEST


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _real(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _named_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_text, value.values()))


def _shape(check: Check, names: str) -> dict[str, Check]:
    return dict.fromkeys(names.split(), check)


_NAMES = _shape(_text, "id cluster user name") | _shape(_moment, "start")
_JOB = (
    _shape(_moment, "end")
    | _shape(_text, "state node source command folder")
    | _shape(_whole, "exit_code signal uid")
    | _shape(_named_texts, "tags environment")
    | _shape(_texts, "nodes")
    | _shape(
        _text,
        "account partition qos reason array_job array_task het_job het_offset tres_asked tres_allocated",
    )
    | _shape(_moment, "submit eligible")
    | _shape(_amount, "restarts")
)
_ASKED = _shape(_amount, "nodes cores memory_bytes time_seconds gpus gpu_memory_bytes")
_USED = _shape(_text, "memory_from device") | _shape(
    _amount,
    "user_seconds system_seconds read_chars_bytes written_chars_bytes major_faults involuntary_switches "
    "duration_seconds cpu_seconds cores_mean cores_peak memory_peak_bytes memory_mean_bytes read_bytes "
    "written_bytes processes threads_peak gpus gpus_mean gpu_memory_peak_bytes gpu_energy_joules "
    "node_idle_cores cpu_seconds_exact unsampled_seconds forks run_delay_seconds run_delay_share "
    "throttled_seconds throttled_share cores_delayed blocked_mean blocked_share oom_kills",
)
_FINDING = _shape(_text, "rule evidence advice") | _shape(_moment, "from to")
_EVENT = _shape(_moment, "time") | _shape(_text, "kind text")
_EVENT_DETAILS = _shape(_text, "device") | _shape(_whole, "pid")
_MARK = _shape(_text, "text") | _shape(_moment, "start")
_MARK_DETAILS = _shape(_moment, "end") | _shape(_text, "node")
_FOM = _shape(_text, "name") | _shape(_real, "last")
_FOM_DETAILS = _shape(_text, "unit node") | _shape(_amount, "count") | _shape(_real, "first lowest highest")
_FOM_POINT = _shape(_moment, "time") | _shape(_real, "value")
_GAP = _shape(_moment, "from to")
_NODE_NAMES = _shape(_text, "node")
_NODE = _shape(_amount, "cores_mean cores_peak memory_peak_bytes cpu_seconds samples expected_samples")
_STEP_NAMES = _shape(_text, "id")
_STEP = (
    _shape(_text, "name state")
    | _shape(_whole, "exit_code signal")
    | _shape(_moment, "start end")
    | _shape(_texts, "nodes")
    | _shape(_amount, "tasks user_seconds system_seconds memory_peak_bytes")
)
_POINT_TIMES = _shape(_moment, "start end")
_POINT = _shape(_amount, "cores system memory read written threads processes delayed blocked")
_PROCESS_NAMES = _shape(_whole, "pid start parent") | _shape(_text, "name command node")
_PROCESS = (
    _shape(
        _amount,
        "cpu_seconds user_seconds system_seconds memory_peak_bytes file_peak_bytes threads read_bytes "
        "written_bytes looks looks_waiting run_delay_seconds alike alike_cpu_seconds",
    )
    | _shape(_moment, "first last")
    | _shape(_flag, "exact left_behind")
)
_GPU_NAMES = _shape(_text, "node gpu index model given") | _shape(_flag, "used")
_GPU = _shape(_moment, "first_use last_use") | _shape(
    _amount, "busy_mean busy_peak memory_peak_bytes memory_total_bytes energy_joules"
)
_GPU_POINT = _shape(_amount, "busy memory power")
_ENERGY_NEEDED = _shape(_amount, "joules") | _shape(_text, "how")
_ENERGY = _shape(_amount, "gpu_joules watts_mean carbon_grams")
_TRAFFIC = _shape(_text, "kind name") | _shape(_amount, "in_bytes out_bytes errors")
_DATA = (
    _shape(_whole, "samples expected_samples")
    | _shape(_amount, "interval_seconds")
    | _shape(_flag, "exact")
    | _shape(_texts, "problems")
)
_FACTS_NEEDED = _NAMES | _shape(_text, "node") | _shape(_amount, "interval")
_FACTS = (
    _shape(_text, "source command folder")
    | _shape(_amount, "cores memory carbon_grams_per_kwh")
    | _shape(_whole, "uid")
    | _shape(_named_texts, "tags")
    | _shape(_texts, "gpus")
)
_END_TIMES = _shape(_moment, "start end")
_END = _shape(_whole, "exit_code signal") | _shape(_texts, "problems")
_TOTALS = _shape(
    _amount,
    "user_seconds system_seconds largest_rss_bytes minor_faults major_faults voluntary_switches "
    "involuntary_switches reaped",
)
_IO = _shape(_amount, "read_chars written_chars read written")


def check_record(record: Any) -> dict[str, Any]:
    """The record with all of its parts. Raises ValueError that names the part which is wrong."""
    found = check_head(record)
    found["findings"] = _list("findings", found.get("findings"), _FINDING, {})
    found["nodes"] = _list("nodes", found.get("nodes"), _NODE_NAMES, _NODE)
    for node in found["nodes"]:
        node["gaps"] = _list("gaps of a node", node.get("gaps"), _GAP, {})
    found["steps"] = _list("steps", found.get("steps"), _STEP_NAMES, _STEP)
    found["timeline"] = _list("timeline", found.get("timeline"), _POINT_TIMES, _POINT)
    found["processes"] = _list("processes", found.get("processes"), _PROCESS_NAMES, _PROCESS)
    found["gpus"] = _list("gpus", found.get("gpus"), _GPU_NAMES, _GPU)
    for gpu in found["gpus"]:
        gpu["timeline"] = _list("timeline of a GPU", gpu.get("timeline"), _POINT_TIMES, _GPU_POINT)
    if found.setdefault("energy", None) is not None:
        found["energy"] = _filled("energy", found["energy"], _ENERGY_NEEDED, _ENERGY)
    found["traffic"] = _list("traffic", found.get("traffic"), _TRAFFIC, {})
    found["events"] = _list("events", found.get("events"), _EVENT, _EVENT_DETAILS)
    found["marks"] = _list("marks", found.get("marks"), _MARK, _MARK_DETAILS)
    found["foms"] = _list("foms", found.get("foms"), _FOM, _FOM_DETAILS)
    for fom in found["foms"]:
        fom["series"] = _list("series of a figure of merit", fom.get("series"), _FOM_POINT, {})
    found["gaps"] = _list("gaps", found.get("gaps"), _GAP, {})
    found["data"] = _filled("data", found.get("data") or {}, {}, _DATA)
    return found


def check_head(record: Any) -> dict[str, Any]:
    """The same, but of the long parts nothing is looked at: a listing needs none of them."""
    found = dict(_section("the record", record))
    if not _text(found.setdefault("verdict", "")):
        raise ValueError("verdict is no text")
    written = found.setdefault("written", 0)
    if not _whole(written):
        raise ValueError("written is no number")
    found["job"] = _filled("job", found.get("job"), _NAMES, _JOB)
    found["asked"] = _filled("asked", found.get("asked") or {}, {}, _ASKED)
    found["used"] = _filled("used", found.get("used") or {}, {}, _USED)
    return found


def check_facts(facts: Any) -> dict[str, Any]:
    """What `joblens run` knew at the start."""
    return _filled("job.json", facts, _FACTS_NEEDED, _FACTS)


def check_end(end: Any) -> dict[str, Any]:
    """What the kernel told at the end."""
    found = _filled("end.json", end, _END_TIMES, _END)
    totals = _filled("totals", found.get("totals") or {}, {}, _TOTALS)
    if totals.get("io") is not None:
        totals["io"] = _filled("io", totals["io"], {}, _IO)
    found["totals"] = {name: value for name, value in totals.items() if value is not None}
    return found


def _list(what: str, value: Any, needed: Mapping[str, Check], known: Mapping[str, Check]) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")
    return [_filled(what, found, needed, known) for found in value]


def _filled(what: str, value: Any, needed: Mapping[str, Check], known: Mapping[str, Check]) -> dict[str, Any]:
    found = dict(_section(what, value))
    for name, check in needed.items():
        if name not in found or not check(found[name]):
            raise ValueError(f"{name} of {what} is {found.get(name)!r:.60}")
    for name, check in known.items():
        if found.setdefault(name, None) is not None and not check(found[name]):
            raise ValueError(f"{name} of {what} is {found[name]!r:.60}")
    return found


def _section(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {value!r:.60}")
    return value
