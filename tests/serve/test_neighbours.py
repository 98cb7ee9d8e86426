"""What a job's report and series show of the nodes that it shared."""

from __future__ import annotations

import msgspec

from joblens.analysis.rule_input import View
from joblens.analysis.rules.cores import bound, cores_taken, short_lived
from joblens.analysis.rules.general import io_wait
from joblens.analysis.verdict import verdict
from joblens.record.report import Asked, Data, Energy, Job, JobRecord, Traffic, Used, parse_record
from joblens.serve.neighbours import (
    OWN_PARTS,
    OWN_USE,
    had_nodes_alone,
    hide_neighbours,
    hide_paths,
    is_visible,
)
from joblens.serve.policy import SUPPORT, USER, Viewer
from joblens.store.catalog.scope import ALL, Scope

OWNER = Viewer("alice", 7, "socket", USER, Scope(False, frozenset({"alice"}), frozenset()))
STAFF = Viewer("sam", 8, "socket", SUPPORT, ALL)


def make(cores: float | None = 2.0, nodes: int = 1, idle: float = 13.37) -> JobRecord:
    names = [f"c{number}" for number in range(nodes)]
    job = Job(
        id="1", cluster="fox", name="x", user="alice", nodes=names, source="slurm", start=0.0, end=600.0
    )
    used = Used(
        duration_seconds=600.0, cpu_seconds=1000.0, cores_mean=1.0, run_delay_share=0.5, cores_delayed=1.0,
        unsampled_seconds=900.0, forks=987_654, node_idle_cores=idle,
    )  # fmt: skip
    view = View(job, Asked(cores=cores), used, [], (), ())
    findings = [found for rule in (cores_taken, bound, short_lived) if (found := rule(view))]
    traffic = [Traffic("Lustre", "/scratch", 4711.0, 4712.0, 0.0)]
    data = Data(node_cores=8.0, problems=["/srv/store/lake/x.parquet is damaged", "no samples of c2"])
    return JobRecord(
        job=job, asked=Asked(cores=cores), used=used, findings=findings, traffic=traffic, data=data
    )


def test_figures_of_a_shared_node_are_hidden() -> None:
    """Idle cores, forks and traffic include other jobs: no figure of them is left, also in evidence."""
    for idle in (13.37, 0.25):
        shown = hide_neighbours(make(idle=idle), OWNER).to_dict()
        text = repr(shown)
        assert shown["findings"]
        assert [it for it in ("13.4", "13.37", "0.25", "0.2 ", "987", "4711") if it in text] == []
        assert (shown["used"]["forks"], shown["used"]["node_idle_cores"], shown["traffic"]) == (
            None,
            None,
            [],
        )
        assert "no samples of c2" in shown["data"]["problems"]
        assert all(finding["evidence"] and finding["advice"] for finding in shown["findings"])


def test_staff_see_all() -> None:
    """And so does the owner of a job that had all cores of its nodes, but for paths of the store."""
    assert hide_neighbours(make(), STAFF) == make()
    alone = hide_neighbours(make(cores=8.0), OWNER)
    assert (alone.used.forks, len(alone.traffic)) == (987_654, 1)
    assert "/srv/store" not in repr(alone)


def test_a_new_field_is_hidden() -> None:
    """Until it is decided that it is the job's own; also one that only a later version knows."""
    shared = {"forks", "node_idle_cores", "device"}
    assert set(Used.__struct_fields__) - set(OWN_USE) == shared
    assert set(JobRecord.__struct_fields__) - set(OWN_PARTS) == {
        "used",
        "verdict",
        "findings",
        "energy",
        "traffic",
    }
    data = msgspec.json.encode({**make().to_dict(), "node_load": 4713.5})
    record = parse_record(data)
    record.keep(data)
    assert "4713" in repr(hide_neighbours(record, STAFF).to_dict())
    assert "4713" not in repr(hide_neighbours(record, OWNER).to_dict())
    later = make()
    later.findings = [later.findings[0].replace(rule="a later rule")]
    assert hide_neighbours(later, OWNER).findings == []


def test_devices_and_energy_of_a_shared_node() -> None:
    """The device is found by the node's traffic, the energy by its meter: only that of the GPUs is shown."""
    record = make()
    record.used = record.used.replace(
        device="md7 (raid)", blocked_share=0.8, blocked_mean=2.0, written_bytes=2e9, cores_mean=0.5
    )
    view = View(record.job, record.asked, record.used, [], (), ())
    found = io_wait(view)
    assert found is not None
    record.findings = [found]
    record.verdict = verdict(view, ["I/O wait"])
    assert "md7" in record.verdict
    assert "md7" in found.evidence
    record.energy = Energy(5000.0, "the node's energy by share of busy core time", 1200.0, 8.3)
    shown = hide_neighbours(record, OWNER)
    assert "md7" not in repr(shown.to_dict())
    assert shown.energy is not None
    assert (shown.energy.joules, shown.energy.watts_mean) == (1200.0, 2.0)
    record.energy = Energy(5000.0, "x")
    assert hide_neighbours(record, OWNER).energy is None


def test_what_others_took() -> None:
    """The share of the CPU time that went to others is in no sentence."""
    record = make(idle=0.0)
    record.verdict = "It used 1.0 of 2 cores; other work took 37% of the CPU time that it wanted."
    shown = hide_neighbours(record, OWNER)
    assert shown.verdict == "It used 1.0 of 2 cores; it was ready to use more."
    assert "other work" not in repr(shown.to_dict()["findings"])


def test_paths_of_the_service() -> None:
    """A sentence with the path of a file is replaced, wherever the file is; others stay."""
    own = ["no samples of c2", "the mark 'a/b' was stopped and never started", "3 of 4 samples/s are missing"]
    of_files = [
        "/var/lib/joblens-hub/hub/journal/7: the entry at byte 3 is damaged; it is left out",
        "the newest samples are missing: cannot read '/srv/journal': Permission denied",
        "[Errno 2] No such file: (/x)",
    ]
    shown = hide_paths([*own, *of_files])
    assert shown[:3] == own
    assert len(shown) == 4
    assert "administrator" in shown[3]


def test_when_a_job_has_its_nodes_alone() -> None:
    """If a scheduler gave it all cores of all nodes; if that is unknown it has not."""
    assert had_nodes_alone(make(cores=8.0))
    assert had_nodes_alone(make(cores=16.0, nodes=2))
    assert not had_nodes_alone(make(cores=8.0, nodes=2))
    assert not had_nodes_alone(make(cores=None))
    unknown = make(cores=8.0)
    unknown.data.node_cores = None
    assert not had_nodes_alone(unknown)
    own = make(cores=8.0)
    own.job.nodes = None  # of `joblens run`, beside others
    assert not had_nodes_alone(own)


def test_sets() -> None:
    """Rows of a job are its owner's; those of a node only if the job had it alone."""
    for name in ("job", "step", "process", "job_gpu"):
        assert is_visible(name, OWNER, alone=False)
    for name in ("cpu", "memory", "disk", "network", "gpu", "infiniband", "load", "kernel", "cgroup", "x"):
        assert not is_visible(name, OWNER, alone=False)
        assert is_visible(name, OWNER, alone=True)
        assert is_visible(name, STAFF, alone=False)
