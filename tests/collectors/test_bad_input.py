"""Whatever a kernel file holds, the agent goes on: consistent rows or one sentence, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.core.config import Settings
from joblens.core.host import Host
from joblens.wire.batch import Batch, decode
from joblens.wire.exposition import Exposition
from kernel import FILES, make_machine

CHANGEABLE = sorted(name for name in FILES if not name.startswith(("facts", "sys/block", "proc/self/statm")))
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.from_regex(rb"(\w{1,9}:? +-?[0-9]{1,25}( kB)?\n){0,9}", fullmatch=True),
    st.sampled_from(
        [b"\n", b" ", b"-1\n", b"99999999999999999999999\n", b"(", b")", b"nan\n", b"\0" * 70000]
    ),
)


@st.composite
def damage(draw: st.DrawFn) -> dict[str, bytes | None]:
    """Some files cut, some missing, some with a piece replaced, doubled or moved."""
    changes: dict[str, bytes | None] = {}
    for name in draw(st.lists(st.sampled_from(CHANGEABLE), min_size=1, max_size=4, unique=True)):
        text = FILES[name]
        first = draw(st.integers(0, len(text)))
        last = draw(st.integers(first, len(text)))
        kind = draw(st.sampled_from(["cut", "missing", "replaced", "doubled", "columns"]))
        changes[name] = {
            "cut": text[:first],
            "missing": None,
            "replaced": text[:first] + draw(GARBAGE) + text[last:],
            "doubled": text[:last] + text[first:],
            "columns": b"\n".join(b" ".join(line.split()[: first % 9]) for line in text.split(b"\n")),
        }[kind]
    return changes


@given(damage(), damage())
def test_damaged_files(before: dict[str, bytes | None], after: dict[str, bytes | None]) -> None:
    """Damage at the start or between two readings: no exception leaves the sampler, rows fit their schema."""
    with tempfile.TemporaryDirectory() as folder:
        logged: list[str] = []
        make_machine(Path(folder), before)
        sampler = Sampler(Host(folder), Settings(), logged.append)
        batch = Batch()
        for tick in range(3):
            samples = sampler.sample(tick * 300)
            for sample in samples:
                rows = sample.rows
                assert len(rows.values) == len(rows.keys) * len(rows.schema.columns)
                assert len(set(rows.keys)) == len(rows.keys)
                assert all(type(value) is int for value in rows.values)
            batch.add(samples)
            for openmetrics in (False, True):
                Exposition(openmetrics).render(sampler.known()).decode()
            if tick == 0:
                make_machine(Path(folder), {**FILES, **after})
            if tick == 1:
                make_machine(Path(folder), dict(FILES))
        decode(batch.encode({}))
        assert all("\n" not in line for line in logged)
        assert not any(running.error for running in sampler.running), "it has not recovered"
        sampler.host.close()
