"""The segments of an experiment."""

from __future__ import annotations

import csv
import datetime
import json
from pathlib import Path

import pytest

from importers.epmt_files import START, job_files, metadata, process, write_tar
from joblens.api.store import Store
from joblens.cli import main
from joblens.jobs.epmt_archives import import_epmt
from joblens.store.home import Home, find_home, make_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Of the ocean one segment is missing and one was repeated; the ice has all, and a job without a tag."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    home = make_home(find_home())
    jobs = [("ocean", "18540101", 10), ("ocean", "18590101", 11), ("ocean", "18690101", 40),
            ("ocean", "18740101", 9), ("ocean", "18590101", 10), ("ice", "18540101", 5),
            ("ice", "18590101", 5), ("ice", "", 5)]  # fmt: skip
    for number, (component, segment, minutes) in enumerate(jobs):
        tags = {"exp_name": "cm4", "exp_component": component, **({"exp_time": segment} if segment else {})}
        start = START + datetime.timedelta(hours=number)
        job = metadata(f"j{number}", job_tags=tags, job_pl_start_ts=start,
                       job_el_stop_ts=start + datetime.timedelta(minutes=minutes))  # fmt: skip
        import_epmt(home, [write_tar(tmp_path / f"{number}.tgz", job_files([process(7)], job))])
    return home


def test_segments(home: Home) -> None:
    """In order, the newest job of each; missing ones by name, and a step that was found."""
    with Store(home) as store:
        ice, ocean = store.segments("cm4")
        frame = store.segments_frame("cm4", component="ocean")
    assert [(it.segment, it.job.id, it.jobs) for it in ocean.segments] == [
        ("18540101", "j0", 1),
        ("18590101", "j4", 2),
        ("18690101", "j2", 1),
        ("18740101", "j3", 1),
    ]
    assert (ocean.step, ocean.missing, ocean.problems) == ("5y", ["18640101"], [])
    assert ocean.segments[2].ratio == pytest.approx(4.0)
    assert (ice.step, ice.missing, ice.problems) == ("5y", [], ["1 job has no tag exp_time"])
    assert frame[["segment", "missing"]].to_numpy().tolist() == [
        ["18540101", False],
        ["18590101", False],
        ["18640101", True],
        ["18690101", False],
        ["18740101", False],
    ]


def test_first_and_last(home: Home) -> None:
    """Those that have to be there are missing if they are not."""
    with Store(home) as store:
        (ice,) = store.segments("cm4", component="ice", every="5y", first="18490101", last="18690101")
        frame = store.segments_frame("cm4", component="ice", first="18490101")
    assert ice.missing == ["18490101", "18640101", "18690101"]
    assert frame["segment"].tolist() == ["18490101", "18540101", "18590101"]


def test_command(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing segments have a row; the first and the last that have to be there can be given."""
    assert main(["series", "cm4", "--component", "ocean"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ocean: 4 segments, one every 5y, 1 missing"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["18540101", "j0"],
        ["18590101", "j4"],
        ["18640101", "missing"],
        ["18690101", "j2"],
        ["18740101", "j3"],
    ]
    words = ["--component", "ice", "--first", "18490101", "--last", "18690101", "--every", "5y", "--json"]
    assert main(["series", "cm4", *words]) == 0
    (found,) = json.loads(capsys.readouterr().out)["series"]
    assert found["missing"] == ["18490101", "18640101", "18690101"]
    assert [it["job"] for it in found["segments"]] == ["j5", "j6"]
    assert main(["series", "cm4", "--by", "number"]) == 0
    assert "5 jobs have no tag number" in capsys.readouterr().err
    assert main(["series", "cm5"]) == 1
    assert capsys.readouterr().err == "joblens: no job has the tag exp_name:cm5\n"
    assert main(["series", "cm4", "--every", "5w"]) == 2
    assert main(["series", "cm4", "--first", "x"]) == 2
    assert "'x' is not a segment" in capsys.readouterr().err
    assert main(["series", "cm4", "--component", "zz"]) == 1
    assert (
        capsys.readouterr().err == "joblens: no job has the tag exp_name:cm4 and the tag exp_component:zz\n"
    )
    for step in ("2", "7y"):
        assert main(["series", "cm4", "--component", "ocean", "--every", step]) == 0
        assert "it is not known whether one is missing" in capsys.readouterr().out.splitlines()[0]
    assert main(["series", "cm4", "--component", "ocean", "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(it["segment"], it["job"], it["missing"]) for it in rows] == [
        ("18540101", "j0", "False"), ("18590101", "j4", "False"), ("18640101", "", "True"),
        ("18690101", "j2", "False"), ("18740101", "j3", "False"),
    ]  # fmt: skip


def test_a_segment_with_two_names(tmp_path: Path) -> None:
    """`4` and `04` are one segment. Each component has its own tag of segments."""
    home = make_home(find_home(tmp_path / "home"))
    jobs = [
        ("a", {"seqno": "4"}),
        ("a", {"seqno": "04"}),
        ("a", {"seqno": "5"}),
        ("b", {"exp_time": "185401"}),
    ]
    for number, (component, tags) in enumerate(jobs):
        start = START + datetime.timedelta(hours=number)
        end = start + datetime.timedelta(minutes=9)
        named = {"exp_name": "x", "exp_component": component, **tags}
        job = metadata(f"j{number}", job_tags=named, job_pl_start_ts=start, job_el_stop_ts=end)
        import_epmt(home, [write_tar(tmp_path / f"{number}.tgz", job_files([process(7)], job))])
    with Store(home) as store:
        first, second = store.segments("x")
    assert [(it.segment, it.job.id, it.jobs) for it in first.segments] == [("04", "j1", 2), ("5", "j2", 1)]
    assert (first.missing, first.problems) == ([], [])
    assert [it.segment for it in second.segments] == ["185401"]
    assert not second.complete
