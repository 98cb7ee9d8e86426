"""A hub, an agent and a session of user mode that a released version left, ended by a power cut."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from hub.sending import Sender, make_batch, running_hub
from joblens.agent.sender import Sender as AgentSender
from joblens.agent.sender import Target
from joblens.agent.spool import Spool
from joblens.core.config import PushSettings
from joblens.hub.damage import survey
from joblens.wire.mac import make_token
from waiting import PATIENCE, wait_for

from .released import VERSIONS, differences, environment_at, move_store, unpack

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def rows_in_lake(store: Path) -> Counter[str]:
    """By set and moment."""
    found: Counter[str] = Counter()
    for folder in (store / "lake").iterdir():
        query = f"SELECT epoch_ns(time) AS t, count(*) FROM '{folder}/*/*.parquet' GROUP BY t"
        for moment, count in duckdb.execute(query).fetchall():
            found[f"{folder.name.removeprefix('set=')} {moment}"] += count
    return found


def batches_in_journal(home: Path) -> list[bytes]:
    found = []
    for path in sorted((home / "journal").iterdir()):
        data = path.read_bytes()
        sound = survey(data, [], unsealed=path.suffix == ".log").sound
        found += [data[at + head.size : at + head.whole] for at, head in sound]
    return found


def test_hub(version: str, tmp_path: Path) -> None:
    """Acknowledged batches and those of the spool reach the lake exactly once; duplicates are dropped."""
    expected = unpack(version, "hub", tmp_path)
    rows = {name: count for name, count in expected["rows"].items() if count}
    ((cluster, node, boot, ranges),) = json.loads((tmp_path / "hub/seen.json").read_bytes())["nodes"]
    cleaned = make_batch(ranges[0][0], node, cluster=cluster, boot=boot)  # it is in the lake alone
    repeats = [cleaned, *batches_in_journal(tmp_path / "hub")]
    assert len(repeats) > len(expected["batches"]["journal"]) >= 3
    assert len(expected["batches"]["spool"]) >= 3
    assert sum(rows_in_lake(tmp_path / "store").values()) < sum(rows.values())
    then = max(int(name.split()[1]) for name in rows) / 1e9 + 3600
    config = f'run_sinks = true\nsegment_seconds = 0.5\n[hub.sinks.lake]\nhome = "{tmp_path}/store"\n'
    more: Any = {"home": tmp_path / "hub", "env": environment_at(then)}
    with running_hub(tmp_path / "config", config, **more) as hub:
        for batch in repeats:
            with Sender(hub.port) as sender:
                assert sender.send(batch, sent=then).status == 200
        send_spool(tmp_path, f"http://127.0.0.1:{hub.port}", len(expected["batches"]["spool"]))
        wait_for("all rows", lambda: rows_in_lake(tmp_path / "store").total() >= sum(rows.values()))
        metrics = hub.metrics()
        assert metrics["joblens_hub_repeats_total"] == len(repeats)
        assert metrics["joblens_hub_gaps_of_nodes"] == 1
        assert hub.said() == []
    assert rows_in_lake(tmp_path / "store") == rows


def send_spool(folder: Path, url: str, count: int) -> None:
    """As an agent does that is started on the same machine after a reboot."""
    token = folder / "token"
    token.touch(0o600)
    token.write_text(make_token((folder / "hub/key").read_bytes(), "fox", "c1"))
    spool, log = Spool(str(folder / "spool"), 1 << 24, "another-boot"), list[str]()
    assert (spool.batches, spool.damage) == (count, "")
    target = Target(PushSettings(url=url, token_file=str(token)), "fox", "c1")
    sender = AgentSender(spool, target, log.append)
    sender.start()
    wait_for("an empty spool", lambda: spool.batches == 0)
    sender.close(PATIENCE)
    assert (sender.progress.sent, sender.progress.failures, log) == (count, 0, [])
    ((*_, why, _),) = json.loads((folder / "spool/gaps.json").read_bytes())
    assert why == "the node went down"


def test_session(version: str, tmp_path: Path) -> None:
    """Its job gets the record that the released version would have made of it, and nothing of it is left."""
    expected = unpack(version, "session", tmp_path)
    move_store(tmp_path)
    ((id, record),) = expected["jobs"].items()
    env = environment_at(record["job"]["end"] + 3600) | {"JOBLENS_HOME": str(tmp_path / "store")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "joblens", "job", id, "--json"],
            env=env, capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
        assert differences({it: record[it] for it in ("job", "asked", "used", "nodes")}, found) == []
        assert found["data"]["samples"] == record["data"]["samples"] >= 5
    (session,) = (tmp_path / "store/usermode").iterdir()
    assert {path.name for path in session.iterdir()} == {"session.json", "lock", "log"}
    assert json.loads((session / "session.json").read_bytes())["state"] == "finished"
    assert len(list((tmp_path / "store/records").glob("*/*"))) == 1
