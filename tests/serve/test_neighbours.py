"""What a job's report and series show of the nodes that it shared."""

from __future__ import annotations

from joblens.analysis.rule_input import View
from joblens.analysis.rules.cores import bound, cores_taken, short_lived
from joblens.record.report import Asked, Data, Job, JobRecord, Traffic, Used
from joblens.serve.neighbours import had_nodes_alone, hide_neighbours, is_visible
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
        shown = hide_neighbours(make(idle=idle), OWNER, "/srv/store").to_dict()
        text = repr(shown)
        assert shown["findings"]
        assert [
            it for it in ("13.4", "13.37", "0.25", "0.2 ", "987", "4711", "/srv/store") if it in text
        ] == []
        assert (shown["used"]["forks"], shown["used"]["node_idle_cores"], shown["traffic"]) == (
            None,
            None,
            [],
        )
        assert "no samples of c2" in shown["data"]["problems"]
        assert all(finding["evidence"] and finding["advice"] for finding in shown["findings"])


def test_staff_see_all() -> None:
    """And so does the owner of a job that had all cores of its nodes, but for paths of the store."""
    assert hide_neighbours(make(), STAFF, "/srv/store") == make()
    alone = hide_neighbours(make(cores=8.0), OWNER, "/srv/store")
    assert (alone.used.forks, len(alone.traffic)) == (987_654, 1)
    assert "/srv/store" not in repr(alone)


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
