from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from joblens.cli import main
from joblens.cli.parser import build_parser
from joblens.cli.slurm import advice
from joblens.collectors.table import COLLECTORS
from joblens.core.config import AttributionSettings
from waiting import wait_for

UNIT = Path(__file__).parents[2] / "deploy/systemd/joblens-agent.service"


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


def test_state_folders_differ() -> None:
    """Hub and agent of one machine have folders of their own: the agent's is for nobody else to read."""
    units = [ConfigParser(interpolation=None) for _ in range(2)]
    for unit, name in zip(units, ("agent", "hub")):
        unit.read_string(UNIT.with_name(f"joblens-{name}.service").read_text())
    folders = [unit["Service"]["StateDirectory"] for unit in units]
    assert len(set(folders)) == 2
    assert units[1]["Service"]["Environment"] == f"JOBLENS_HOME=/var/lib/{folders[1]}"


def test_the_ingest_daemon_can_write() -> None:
    """Its words are those of the command, and it may write to the folder and to the store of the hub."""
    unit = ConfigParser(interpolation=None, strict=False)
    unit.read_string(UNIT.with_name("joblens-ingest.service").read_text())
    service = unit["Service"]
    _, _, *words = service["ExecStart"].split()
    options = build_parser(["ingest"]).parse_args(words)
    home = service["Environment"].removeprefix("JOBLENS_HOME=")
    assert {home, str(Path(options.folder).parent)} == set(service["ReadWritePaths"].split())
    assert service["ExecStartPre"].endswith(f"install -d -m 1777 {options.folder}")


def test_slurm_conf_is_what_install_prints() -> None:
    """The example and the command say the same."""
    example = (UNIT.parents[1] / "slurm/slurm.conf").read_text().splitlines()
    for line in advice("/etc/slurm/joblens.d", per_job=False):
        assert line.startswith("#") or line in example
    guide = (UNIT.parents[2] / "docs/deploy.md").read_text()
    assert all(f"\n{line}\n" in guide for line in example if line and not line.startswith("#"))


def test_make_run(tmp_path: Path) -> None:
    """The script behind it: what is sampled, the report of a job, where to look, and all of it ends."""
    programs = {"joblens": f'exec {sys.executable} -m joblens "$@"', "python": "exec sleep 0.3"}
    for name, line in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o700)
    environment = {**os.environ, "JOBLENS": str(tmp_path / "joblens"), "JOBLENS_HOME": str(tmp_path / "home")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(UNIT.parents[1] / "try"), *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    try:
        found = run("--listen", "127.0.0.1:0", "--hub-listen", "127.0.0.1:0")
    finally:
        stopped = run("stop")
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines() if line]
    assert any(words[0] == "memory" and words[-1] == "live" for words in lines)
    assert {"agent", "hub", "store", "report", "live", "stop"} <= {words[0] for words in lines}
    assert "sample" in found.stderr
    assert "COMPLETED" in found.stderr
    assert (stopped.returncode, stopped.stderr) == (0, "agent, hub and service have ended\n")
    assert run("stop").stderr == "joblens up is not running here\n"


ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="root and setpriv (util-linux) are needed"
)
USER = 61001


@pytest.fixture
def site() -> Iterator[Path]:
    """A folder with settings and a site's script, which nobody can run, beside a process of another user."""
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen(["sleep", "600"], user=USER, group=USER, extra_groups=[]) as other,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        script = folder / "script"
        script.write_text("#!/bin/sh\necho uid $(id -u)\n")
        script.chmod(0o755)
        (folder / "joblens.toml").write_text(f'[external.site]\ncommand = ["{script}"]\n')
        yield folder
        other.kill()


def capabilities() -> list[str]:
    unit = ConfigParser(interpolation=None)
    unit.read_string(UNIT.read_text())
    assert unit["Service"]["NoNewPrivileges"] == "yes"
    return unit["Service"]["CapabilityBoundingSet"].split()


def restricted(site: Path, allowed: list[str]) -> list[str]:
    """An agent that has these capabilities, as systemd would start it."""
    bounds = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in allowed)])
    agent = [sys.executable, "-m", "joblens", "agent", "--config", str(site / "joblens.toml")]
    return ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", "--inh-caps=-all", *agent]


def look_once(site: Path, allowed: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*restricted(site, allowed), "--once"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def need_restricted_log() -> None:
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1":
        pytest.skip("everybody may read this kernel's log")


@ROOT_ONLY
def test_the_unit_allows_every_collector(site: Path) -> None:
    """With exactly its capabilities each default collector reads all that there is, and a script runs."""
    found = look_once(site, capabilities())
    present = {
        it.name
        for it in COLLECTORS
        if re.search(rf'joblens_collector_present{{collector="{it.name}"}} 1', found.stdout)
    }
    assert {it.name for it in COLLECTORS if not it.optional} <= present
    assert "kernel_log" in present
    assert not re.search("joblens_collector_success{.*} 0", found.stdout)
    assert "joblens_collector_error{" not in found.stdout
    assert "joblens_kernel_log_records_total" in found.stdout
    assert "joblens_external_site_uid 65534" in found.stdout
    assert "CAP_" not in found.stderr
    assert re.search(rf'joblens_job_info{{.*uid="{USER}".*io_from="processes"}}', found.stdout)


@ROOT_ONLY
@pytest.mark.parametrize(
    ("taken", "collector", "said"),
    [
        ("CAP_SYSLOG", "kernel_log", "/dev/kmsg needs CAP_SYSLOG"),
        ("CAP_SYS_PTRACE", "processes", "I/O of other users' processes needs CAP_SYS_PTRACE"),
        ("CAP_SETUID", "external_site", "to run a script as nobody needs CAP_SETUID"),
        ("CAP_SETGID", "external_site", "to run a script as nobody needs CAP_SETGID"),
        ("CAP_KILL", "external_site", "to run a script as nobody needs CAP_KILL"),
    ],
)
def test_what_is_missing_is_named(site: Path, taken: str, collector: str, said: str) -> None:
    """In the log and in the collector's health; all other collectors go on."""
    if taken == "CAP_SYSLOG":
        need_restricted_log()
    found = look_once(site, [name for name in capabilities() if name != taken])
    (line,) = [line for line in found.stderr.splitlines() if said in line]  # a slurmstepd adds another
    assert re.fullmatch(rf".*{collector}: .*{re.escape(said)}", line)
    (error,) = re.findall(r"joblens_collector_error{(.*)} 1", found.stdout)
    assert error.startswith(f'collector="{collector}"')
    assert said in error
    failing = re.findall(r'joblens_collector_success{collector="(.*)"} 0', found.stdout)
    assert failing == ([] if collector == "processes" else [collector])


@ROOT_ONLY
def test_where_to_see_what_is_missing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`joblens ls` and `joblens slurm check` say what the agent's log says."""
    need_restricted_log()
    allowed = [name for name in capabilities() if name != "CAP_SYSLOG"]
    command = [*restricted(site, allowed), "--listen", "127.0.0.1:0"]
    with (
        (site / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as agent,
    ):
        try:
            pattern = re.compile("metrics at http://(.*)/metrics")
            (address,) = wait_for("the agent", lambda: pattern.findall((site / "log").read_text()))
            wait_for("its log", lambda: "CAP_SYSLOG" in (site / "log").read_text())
            assert main(["ls", address]) == 0
            assert re.search("kernel_log.* absent: /dev/kmsg needs CAP_SYSLOG\n", capsys.readouterr().out)
            (site / "joblens.toml").write_text(f'listen = "{address}"')
            main(["slurm", "check", "--folder", str(site), "--config", str(site / "joblens.toml")])
            assert "✗ collectors     kernel_log: /dev/kmsg needs CAP_SYSLOG\n" in capsys.readouterr().out
        finally:
            agent.terminate()
