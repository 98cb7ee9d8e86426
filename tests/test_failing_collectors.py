from __future__ import annotations

from pathlib import Path

from joblens.agent.sampler import Sampler
from joblens.config import Settings
from joblens.host import Host
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
