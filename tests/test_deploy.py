from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from joblens.config import AttributionSettings

UNIT = Path(__file__).parents[1] / "deploy/systemd/joblens-agent.service"


def test_job_files_outlive_a_restart() -> None:
    """systemd makes the folder of job files, and does not remove it when the agent is started anew."""
    unit = ConfigParser(interpolation=None)
    unit.read_string(UNIT.read_text())
    folders = [f"/run/{name}" for name in unit["Service"]["RuntimeDirectory"].split()]
    assert AttributionSettings().job_files in folders
    assert unit["Service"]["RuntimeDirectoryPreserve"] == "yes"


def test_spool_can_be_written() -> None:
    """All of the machine is read-only for the service, but for the folder that systemd makes for it."""
    unit = ConfigParser(interpolation=None)
    unit.read_string(UNIT.read_text())
    assert unit["Service"]["ProtectSystem"] == "strict"
    assert unit["Service"]["StateDirectory"] == "joblens"  # it is told to the agent as STATE_DIRECTORY
    assert unit["Service"]["StateDirectoryMode"] == "0700"
