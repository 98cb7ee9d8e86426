from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.collectors.cgroup_limits import find_limits
from joblens.core.errors import UsageError
from joblens.core.host import Host
from joblens.run.facts import collect, cores, memory, new_job_id, parse_tags, quote

MOUNTS = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
GROUP = "slurm/job_7/step_0/task_0"


def test_ids_sort_by_time() -> None:
    """An id is short, safe in a file name, and later ones come behind earlier ones."""
    ids = [new_job_id(now) for now in (1_700_000_000, 1_700_000_001, 1_900_000_000)]
    assert ids == sorted(ids)
    assert all(name.isalnum() and name.startswith("r") and len(name) == 13 for name in ids)


def test_ids_of_one_second_differ() -> None:
    """A thousand jobs that a launcher starts together on all nodes hardly ever have the same."""
    assert len({new_job_id(1_700_000_000) for _ in range(1000)}) > 997


def test_tags() -> None:
    """Several options, several in one, colons and blanks in the value."""
    assert parse_tags(["a:1;b:2", "c: x:y "]) == {"a": "1", "b": "2", "c": "x:y"}
    assert parse_tags([]) == {}


@pytest.mark.parametrize("text", ["none", ":value", " :v"])
def test_tag_without_a_name(text: str) -> None:
    """A tag that has none is wrong use, and the sentence shows it."""
    with pytest.raises(UsageError, match="name:value"):
        parse_tags([text])


def grouped(folder: Path, **files: str) -> Host:
    """A machine on which we are in a group, with files in it (`a__b` is the file b of the group a)."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mounts").write_text(MOUNTS)
    (folder / "proc/self/cgroup").write_text(f"0::/{GROUP}\n")
    (folder / "proc/meminfo").write_text("MemTotal:       1024 kB\nMemFree: 1 kB\n")
    (folder / "sys/fs/cgroup" / GROUP).mkdir(parents=True)
    for name, text in files.items():
        depth, _, file = name.partition("__")
        group = "/".join(GROUP.split("/")[: int(depth[1:])])
        (folder / "sys/fs/cgroup" / group / file.replace("_", ".")).write_text(text)
    return Host(str(folder))


def test_limits_of_the_groups_above(tmp_path: Path) -> None:
    """A scheduler limits the job's group, and the leaf that we are in says `max`."""
    host = grouped(tmp_path, g4__memory_max="max\n", g2__memory_max="65536\n", g2__cpu_max="50000 100000\n")
    assert memory(host) == 65536
    assert cores(host) == 0.5


def test_each_controller_has_its_own_group(tmp_path: Path) -> None:
    """In cgroup v1 a group of the same name that limits something else is not ours."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/lab\n2:cpu,cpuacct:/\n1:name=systemd:/lab\n0::/\n")
    mounts = (f"cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n" for name in ("memory", "cpu"))
    (tmp_path / "proc/self/mounts").write_text("".join(mounts))
    files = {
        "cpu/lab/cpu.cfs_quota_us": "30000\n",
        "cpu/lab/cpu.cfs_period_us": "100000\n",
        "memory/lab/memory.limit_in_bytes": "65536\n",
    }
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert find_limits(Host(str(tmp_path))).lowest == {"memory_limit_bytes": 65536}


def test_without_limits(tmp_path: Path) -> None:
    """Then it is the node's memory, and the cores that we may run on."""
    host = grouped(tmp_path, g4__memory_max="max\n", g4__cpu_max="max 100000\n")
    assert memory(host) == 1024 * 1024
    assert cores(host) >= 1
    assert cores(host) == int(cores(host))


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    """Without /proc a job still has its facts; what is not known is None."""
    facts = collect(Host(str(tmp_path)), ["./a/run.sh", "x"], "", {}, 1.0)
    assert facts.memory is None
    assert facts.name == "run.sh"
    assert facts.node


def test_only_harmless_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of a job is kept of its environment, and never a secret."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    facts = collect(Host(), ["true"], "n", {}, 1.0)
    assert facts.environment["OMP_NUM_THREADS"] == "3"
    assert "s3cret" not in str(facts.environment)


def test_long_names_and_commands() -> None:
    """What is kept of them is bounded."""
    facts = collect(Host(), ["x" * 10_000, "y"], "n" * 10_000, {}, 1.0)
    assert len(facts.name) == 256
    assert len(facts.command) == 4096


def test_a_command_can_be_typed_again() -> None:
    """Its words are quoted where a shell needs that."""
    assert collect(Host(), ["sh", "-c", "a | b"], "", {}, 1.0).command == "sh -c 'a | b'"


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_words_are_quoted_as_the_shell_wants_it(words: list[str]) -> None:
    """Any character, and none."""
    assert quote(words) == shlex.join(words)
