"""The audit log: what is written, and how often."""

from __future__ import annotations

import json
from pathlib import Path

from joblens.serve.audit import Audit
from joblens.serve.policy import SUPPORT, Viewer
from joblens.store.catalog.scope import ALL

SAM = Viewer("sam", 8, "socket", SUPPORT, ALL)


def test_live_pages_once_per_hour(tmp_path: Path) -> None:
    """A page that is read every few seconds is one line per hour, and one more for each new owner."""
    now = [0.0]
    audit = Audit(tmp_path / "audit", lambda: now[0])

    def read(*owners: str, viewer: Viewer = SAM, route: str = "/now") -> list[list[str]]:
        before = len((tmp_path / "audit").read_text().splitlines())
        audit.note_live(viewer, route, owners)
        return [json.loads(it)["owner"] for it in (tmp_path / "audit").read_text().splitlines()[before:]]

    assert read("alice", "bob", "sam") == [["alice", "bob"]]
    assert read("alice", "bob") == []
    assert read("alice", "carol") == [["carol"]]
    assert read("alice", viewer=SAM._replace(user="tom", uid=9)) == [["alice"]]
    assert read("alice", route="/sets") == [["alice"]]
    now[0] = 3599.0
    assert read("alice", "bob", "carol") == []
    now[0] = 3600.0
    assert read("alice") == [["alice"]]
    audit.close()
