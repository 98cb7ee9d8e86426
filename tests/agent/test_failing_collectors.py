from __future__ import annotations

from pathlib import Path

import pytest

from joblens.agent.sampler import Sampler
from joblens.core.config import Settings
from joblens.core.host import Host
from kernel import make_machine


def test_a_failing_collector_shows_nothing(tmp_path: Path) -> None:
    """Figures that can no longer be read are not shown as if they were of now, until they can again."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), lambda words: None)
    file = Path(sampler.host.root) / "proc/loadavg"
    text = file.read_bytes()
    shown = []
    for content in (text, b"nonsense\n", text):
        file.write_bytes(content)
        sampler.sample(0)
        shown.append("load" in [rows.schema.set for rows in sampler.known()])
    assert shown == [True, False, True]


def test_a_file_that_is_another_one_now(tmp_path: Path) -> None:
    """A collector that starts over reads the current file, not one that was kept open."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), lambda words: None)
    file = Path(sampler.host.root) / "proc/loadavg"
    text = file.read_bytes()
    file.write_bytes(b"nonsense\n")
    sampler.sample(0)
    file.unlink()
    file.write_bytes(text)
    sampler.sample(1)
    assert "load" in [rows.schema.set for rows in sampler.known()]


def test_jobs_are_not_shown_while_processes_cannot_be_read(tmp_path: Path) -> None:
    """Values from processes vanish and return completely; those from cgroups stay."""
    root = Path(make_machine(tmp_path))
    (root / "proc/4000/cgroup").write_bytes(b"0::/\n")
    sampler = Sampler(Host(str(root)), Settings(), lambda words: None)
    file = root / "proc/4000/stat"
    text = file.read_bytes()
    shown = []
    for tick, content in enumerate((text, b"nonsense\n", text)):
        file.write_bytes(content)
        sampler.sample(tick * 5)
        jobs = next(rows for rows in sampler.known() if rows.schema.set == "job")
        shown.append([key[1] for key in jobs.keys])
    assert shown == [["42", "s4000"], ["42"], ["42", "s4000"]]


def test_attribution_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of attribution is reported like a collector's; samples of the node and its processes
    continue without jobs, which return once it works again."""
    log: list[str] = []
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), log.append)
    shown, owned, errors = [], [], []
    for tick in range(3):
        with monkeypatch.context() as patch:
            if tick == 1:
                patch.setattr("joblens.attribution.sums.Account.take", lambda *_: 1 // 0)
            sets = {sample.rows.schema.set for sample in sampler.sample(tick * 5)}
        shown.append({"load", "process", "job"} & sets)
        owned.append(sampler.latest["process"].rows.keys[0][1])
        errors.append(
            [key[0] for rows in sampler.known() if rows.schema.set == "collector_error" for key in rows.keys]
        )
    assert shown == [{"load", "process", "job"}, {"load", "process"}, {"load", "process", "job"}]
    assert owned == ["42", "", "42"]
    assert errors == [[], ["attribution"], []]
    assert len(log) == 1
    assert "attribution: " in log[0]


def test_nothing_of_hardware_that_is_not_here(tmp_path: Path) -> None:
    """A node without GPUs has no collector of GPUs that does not succeed."""
    sampler = Sampler(Host(make_machine(tmp_path)), Settings(), print)
    sampler.sample(0)
    (health,) = [rows for rows in sampler.known() if rows.schema.set == "collector"]
    assert ("cpu",) in health.keys
    assert not {("gpu",), ("energy",), ("infiniband",), ("lustre",)} & set(health.keys)
