"""Generate docs/metrics.md, the fields in docs/api.md, and default.toml: `make docs`.

A test fails if one of them is outdated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from joblens.agent.loop import OWN
from joblens.agent.push import PUSH, PUSH_ERROR
from joblens.agent.sampler import FAILING, HEALTH
from joblens.attribution.account import INFO, JOB, OWNED_PROCESS, STEP
from joblens.attribution.gpu_shares import JOB_GPU, OWNED_GPU_PROCESS
from joblens.collectors.cgroups import SCHEMA as CGROUP
from joblens.collectors.cpu import KERNEL
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.disk import SCHEMA as DISK
from joblens.collectors.ends.sets import END_EVENT, JOB_END, PROCESS_END, THREAD_END
from joblens.collectors.energy.reading import SCHEMA as ENERGY
from joblens.collectors.filesystems import SCHEMA as FILESYSTEMS
from joblens.collectors.gpu.amd import AMD
from joblens.collectors.gpu.collector import DRIVER
from joblens.collectors.gpu.intel import INTEL
from joblens.collectors.gpu.jetson import RAIL, ZONE
from joblens.collectors.gpu.nvidia_extras import GPU_NVIDIA
from joblens.collectors.gpu.reading import GPU, GPU_PROCESS
from joblens.collectors.infiniband import SCHEMA as INFINIBAND
from joblens.collectors.interrupts import ALL_CORES
from joblens.collectors.kernel_log import EVENT_COUNT, LOG
from joblens.collectors.load import SCHEMA as LOAD
from joblens.collectors.lustre import SCHEMA as LUSTRE
from joblens.collectors.memory import SCHEMA as MEMORY
from joblens.collectors.network import SCHEMA as NETWORK
from joblens.collectors.nfs import NFS, OPERATION
from joblens.collectors.pressure import SCHEMA as PRESSURE
from joblens.collectors.process.collector import PROCESS, THREAD
from joblens.collectors.process.pss import PROCESS_PSS
from joblens.collectors.slingshot import SCHEMA as SLINGSHOT
from joblens.collectors.table import COLLECTORS
from joblens.collectors.vmstat import SCHEMA as VMSTAT
from joblens.core.model import Schema
from joblens.hub.kafka.intake import SCHEMAS as INTAKE_SCHEMAS
from joblens.hub.pages import SCHEMAS as HUB_SCHEMAS
from joblens.hub.runner import SCHEMAS as SINK_SCHEMAS
from joblens.record.schema import render_tables
from joblens.wire.exposition import series_name

SCHEMAS: dict[str, tuple[Schema, ...]] = {
    "cpu": (CPU, KERNEL),
    "memory": (MEMORY,),
    "vmstat": (VMSTAT,),
    "interrupts": (ALL_CORES,),
    "load": (LOAD,),
    "disk": (DISK,),
    "network": (NETWORK,),
    "pressure": (PRESSURE,),
    "filesystems": (FILESYSTEMS,),
    "cgroups": (CGROUP,),
    "processes": (PROCESS, THREAD, PROCESS_PSS),
    "ends": (END_EVENT, PROCESS_END, THREAD_END, JOB_END),
    "kernel_log": (LOG, EVENT_COUNT),
    "gpu": (GPU, GPU_PROCESS, DRIVER, GPU_NVIDIA, AMD, INTEL, RAIL, ZONE),
    "energy": (ENERGY,),
    "infiniband": (INFINIBAND,),
    "slingshot": (SLINGSHOT,),
    "lustre": (LUSTRE,),
    "nfs": (NFS, OPERATION),
}
_OWNED = {"process": OWNED_PROCESS, "gpu_process": OWNED_GPU_PROCESS}  # attribution adds the job labels
TOP = Path(__file__).parent.parent
SETTINGS = TOP / "src" / "joblens" / "default.toml"
_SETTINGS_HEAD = """\
# Settings of joblens. Commented lines are the defaults; to change one, remove the # and edit it.
# docs/settings.md, hub.md and serve.md explain them; `joblens config show` prints the values in effect."""
PAGE = Path(__file__).with_name("metrics.md")
API = Path(__file__).with_name("api.md")
_FIELDS = "<!-- fields, generated from src/joblens/record by `make docs` -->\n"
HEAD = """\
# Metrics

All metrics of agent and hub, generated from the code by `make docs`. To see them on a node:

```console
$ joblens agent --once | grep joblens_job_
```

A *set* is one source sampled at one instant. On `/metrics` a column is named `joblens_<set>_<column>`, in
base units, with the suffix `_total` for counters. Unknown values are absent, never zero. Counters are raw;
compute rates when you read them.

`memory` and `vmstat` have one column per line of the kernel's file; this page lists the most useful ones.
Sets with a row per process, thread or cgroup are exported only with `process_metrics = true`, because of
their cardinality.

A process of one thread that sleeps is read at every fifth scan. Until then its parent, group, session and
memory, which others can change, can be five scans old, and so can context switches of any process. Once it
has run, it is read at the next scan.
"""


def render() -> str:
    return HEAD + "".join(_render_all())


def _render_all() -> Iterator[str]:
    yield "\n## Metrics of the node\n"
    for collector in COLLECTORS:
        options = ", ".join(f"`{name}`" for name in collector.options)
        pace = f"every {collector.pause:g} s" if collector.pause else "at every tick"
        yield f"\n### {collector.name}\n\nFrom `{collector.reads}`, {pace} by default"
        yield f"; further options: {options}.\n" if options else ".\n"
        for schema in SCHEMAS[collector.name]:
            yield _render_schema(_OWNED.get(schema.set, schema))
    yield "\n## Metrics of jobs\n"
    for schema in (JOB, STEP, INFO, JOB_GPU):
        yield _render_schema(schema)
    yield "\n## Metrics of the agent\n"
    for schema in (OWN, PUSH, PUSH_ERROR, HEALTH, FAILING):
        yield _render_schema(schema)
    yield "\n## Metrics of the hub\n\nOn `/metrics` of the [hub](hub.md).\n"
    for schema in (*HUB_SCHEMAS, *SINK_SCHEMAS, *INTAKE_SCHEMAS):
        yield _render_schema(schema)


def _render_schema(schema: Schema) -> str:
    labels = ", ".join(f"`{label}`" for label in schema.labels)
    lines = [
        f"\nSet `{schema.set}`" + (f", by {labels}" if labels else "") + ":\n",
        "| metric | kind | meaning |",
    ]
    lines.append("|---|---|---|")
    lines += [
        f"| `{series_name(schema, column)}` | {column.kind} | {column.help} |" for column in schema.columns
    ]
    return "\n".join(lines) + "\n"


def render_settings() -> str:
    """Return every setting, commented out, with its default and meaning."""
    parts = [_SETTINGS_HEAD]
    for name in ("settings.md", "hub.md", "serve.md"):
        (example, *_) = re.findall(r"```toml\n(.*?)```", (TOP / "docs" / name).read_text(), re.S)
        parts.append("\n".join(map(_comment, example.splitlines())))
    return "\n\n".join(parts) + "\n"


def _comment(line: str) -> str:
    return line if not line or line.startswith(("[", "#")) else "#" + line


def render_api() -> str:
    """Return the page of the API with the fields of a record at its end."""
    written, mark, _ = API.read_text(encoding="utf-8").partition(_FIELDS)
    return f"{written}{mark}\n{render_tables()}"


if __name__ == "__main__":
    API.write_text(render_api(), encoding="utf-8")
    PAGE.write_text(render(), encoding="utf-8")
    SETTINGS.write_text(render_settings(), encoding="utf-8")
