"""How Slurm is asked. Commands here are stand-ins with recorded answers; a real cluster is in services/."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joblens.core.errors import OutsideError
from joblens.schedulers.slurm.client import Slurm

from .recording import HOSTILE, SLURM

# Each answers with the mark that it is asked to write, as the real ones do.
SQUEUE = r"""#!/bin/sh
for word; do case $word in
  --Format=*) mark=${word#--Format=JobID:}; mark=${mark%%,*};;
  --jobs=9999*) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;
  --jobs=*) [ "$word" = --jobs=21 ] || exit 0;;
esac; done
echo "squeue $*" >> HERE/asked; env | sort > HERE/environment
sed "s/~mark~/$mark/g" RECORDED/squeue.txt
"""
SACCT = r"""#!/bin/sh
echo "sacct $*" >> HERE/asked
for word; do case $word in
  --helpformat) echo 'JobID JobIDRaw Reason'; echo 'ReqNodes SubmitLine WorkDir'; exit 0;;
  --delimiter=*) mark=${word#--delimiter=};;
esac; done
sed "s/~mark~/$mark/g" RECORDED/sacct.txt
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("squeue", SQUEUE), ("sacct", SACCT)):
        (tmp_path / name).write_text(text.replace("HERE", str(tmp_path)).replace("RECORDED", str(SLURM)))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def calls(here: Path) -> list[str]:
    return (here / "asked").read_text().splitlines()


def test_live(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call, whatever the number of jobs, and nothing of our environment that could change the answer."""
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("SECRET", "x")
    assert len(Slurm().live()) == 9
    (call,) = calls(here)
    assert call.startswith("squeue --all --local --noheader --Format=JobID:~")
    passed = {line.partition("=")[0] for line in (here / "environment").read_text().splitlines()}
    assert {"PATH", "SLURM_CONF", "SLURM_TIME_FORMAT"} <= passed
    assert not {"SQUEUE_FORMAT", "SECRET", "HOME"} & passed


def test_a_mark_of_its_own(here: Path) -> None:
    """It cannot be predicted."""
    slurm = Slurm()
    slurm.live()
    slurm.live()
    assert len(set(calls(here))) == 2


def test_ended(here: Path) -> None:
    """One call for accounting, after one that asks which columns there are. By the end of each run."""
    slurm = Slurm()
    jobs = slurm.ended(1_794_800_600.4, 1_794_800_635.0)
    assert all(1_794_800_600.4 <= (job.end or 0) <= 1_794_800_635.0 for job in jobs)
    assert {job.shown_id for job in jobs} == {
        *("21", "24", "25+0", "25+1", "27", "28", "22_1", "22_2", "22_3", "22_4", "22_5", "22_6"),
    }
    slurm.ended(1_794_800_635.0, 1_794_800_636.0)
    first, second, third = calls(here)
    assert first == "sacct --helpformat"
    assert "--starttime=uts1794800600 --endtime=uts1794800635" in second
    assert "--allusers --duplicates --parsable2 --noheader" in second
    assert ",WorkDir,SubmitLine,ReqNodes,ExitCode " in second
    assert "Restarts" not in second
    assert third.startswith("sacct --allusers")


def test_job(here: Path) -> None:
    """From the queue while it is there, else the last run that accounting has, by either form of its id."""
    slurm = Slurm()
    found = [slurm.job(id) for id in ("21", "27", "25+1", "22_3", "32", "24", "99999")]
    assert [(job.id, job.state) if job else None for job in found] == [
        ("21", "RUNNING"),
        ("27", "CANCELLED"),
        ("26", "COMPLETED"),
        ("32", "COMPLETED"),
        ("32", "COMPLETED"),
        ("24", "FAILED"),
        None,
    ]
    assert found[5] is not None
    assert found[5].name == HOSTILE


def asked(here: Path, id: str) -> list[list[str]]:
    """The arguments, but for the mark and what all commands have."""
    (here / "asked").unlink(missing_ok=True)
    Slurm().job_among(id, {"alice", "bob"}, {"physics"})
    return [
        [word for word in call.split() if "~" not in word and "--format" not in word] for call in calls(here)
    ]


def test_job_among(here: Path) -> None:
    """Whether a job runs, has ended or does not exist, the same commands run, for the users and accounts that
    may be seen: their time says nothing about jobs of others."""
    found = asked(here, "21")
    assert [words for words in found if "--helpformat" not in words] == [
        ["squeue", "--all", "--local", "--noheader", "--user=alice,bob"],
        ["sacct", "--user=alice,bob", "--duplicates", "--parsable2", "--noheader", "--jobs=21"],
        ["squeue", "--all", "--local", "--noheader", "--account=physics"],
        [
            "sacct",
            "--allusers",
            "--accounts=physics",
            "--duplicates",
            "--parsable2",
            "--noheader",
            "--jobs=21",
        ],
    ]
    for id in ("24", "99999"):
        others = [[word.replace(f"--jobs={id}", "--jobs=21") for word in words] for words in asked(here, id)]
        assert others == found
    states = [job and job.state for job in (Slurm().job_among(id, {"a"}, ()) for id in ("21", "24", "99999"))]
    assert states == ["RUNNING", "FAILED", None]
    assert Slurm().job_among("21", (), ()) is None


def test_job_among_with_one_command_down(here: Path) -> None:
    """What the other command finds is returned; if it finds nothing, the job may exist."""
    (here / "sacct").write_text("#!/bin/sh\necho 'sacct: error: Connection refused' >&2; exit 1\n")
    found = Slurm().job_among("21", {"a"}, ())
    assert found is not None
    assert found.state == "RUNNING"
    with pytest.raises(OutsideError, match="Connection refused"):
        Slurm().job_among("99999", {"a"}, ())


@pytest.mark.parametrize("id", ["", "21.batch", "--me", "21,22", "21;id", "22_[1-2]", "../21", "x"])
def test_no_job_id(here: Path, id: str) -> None:
    """A text that is not the id of one job yields None without running a command."""
    assert Slurm().job(id) is None
    assert Slurm().job_among(id, {"a"}, {"b"}) is None
    assert not (here / "asked").exists()


def test_failing(here: Path) -> None:
    """Its complaint is in the sentence."""
    (here / "squeue").write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n"
    )
    with pytest.raises(OutsideError, match="squeue failed \\(1\\): slurm_load_jobs error: Unable to contact"):
        Slurm().live()
    with pytest.raises(OutsideError, match="Unable to contact"):
        Slurm().job("21")
