from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joblens.api import Store
from joblens.core.errors import MalformedError
from joblens.core.json_file import render_json
from joblens.record.listed import ListedAsked, ListedJob, ListedUsed
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.reports.width import display_width
from joblens.store import records
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import Home

from .made import START, new_home, store_job

DAY = "2020-01-02"
PARTS = ("version", "written", "job", "asked", "used", "verdict")
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(st.characters(), max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a job that was really stored, with findings, gaps, and what a scheduler's job has beyond it."""
    made = store_job(new_home(tmp_path_factory.mktemp("store")), "j1", tags={"a": "b"})
    stretch = {"from": START + 1, "to": START + 4}
    finding = {"rule": "idle cores", "evidence": "few", "advice": "fewer", **stretch}
    plain = made.to_dict()
    job = {**plain["job"], "nodes": ["c1", "c2"], "array_job": "4200", "array_task": "7", "submit": START - 9}
    step = {"id": "0", "name": "x", "state": "FAILED", "exit_code": 1, "start": START, "nodes": ["c2"]}
    nodes = [{**plain["nodes"][0], "node": name, "gaps": [stretch]} for name in ("c1", "c2")]
    more = {"job": job, "nodes": nodes, "steps": [step], "findings": [finding], "gaps": [stretch]}
    return {**plain, "written": 5, **more}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a record."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[found for name, part in inner for found in places(part, (*path, name))]]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@given(st.data())
@settings(max_examples=300)
def test_any_value_anywhere(record: dict[str, Any], data: st.DataObject) -> None:
    """A record with anything in any place is refused, or can be listed and shown on 80 columns."""
    path = data.draw(st.sampled_from(places(record)))
    text = json.dumps(changed(record, path, data.draw(JSON))).encode()
    try:
        found = records.parse_record("r.json", text)
    except MalformedError:
        return
    take(text)
    for line in render_report(found, Style(False)).splitlines():
        assert display_width(line) <= 80, line


def take(text: bytes) -> None:
    """Into a catalog that lies in memory."""
    from joblens.store.catalog import writer
    from joblens.store.catalog.heads import make_head
    from joblens.store.catalog.schema import migrate

    database = sqlite3.connect(":memory:", isolation_level=None)
    migrate(database)
    writer.Writer(database).insert([make_head(0, records.parse_listed("r.json", text))], 1)
    assert database.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    database.close()


@given(st.data())
@settings(max_examples=200)
def test_heads(record: dict[str, Any], data: st.DataObject) -> None:
    """What a listing takes of a record is the same, whether the rest was read or not, and whatever it has."""
    path = data.draw(st.sampled_from(places(record)))
    new = data.draw(st.one_of(JSON, st.sampled_from([', "findings": [', {"a": 1, "findings": [1]}])))
    text = render_json(changed(record, path, new))
    try:
        whole = records.parse_record("r.json", text)
    except MalformedError:
        return
    for form in (text, records._seal(text), records._seal(text) + b"\n"):
        assert shown(records.parse_listed("r.json", form)) == shown(whole)


def shown(record: Any) -> list[Any]:
    """Of either type, the fields that a listing shows."""
    parts = [ListedJob, ListedAsked, ListedUsed]
    pairs = zip((record.job, record.asked, record.used), parts)
    figures = [getattr(part, name) for part, kind in pairs for name in kind.__struct_fields__]
    return [record.version, record.written, record.verdict, *figures]


def test_the_long_parts_are_not_read(record: dict[str, Any]) -> None:
    """For a listing; in whatever order the parts stand, it gets the same."""
    wrong = {**record, "timeline": "no list"}
    head = records.parse_listed("r.json", render_json(wrong))
    assert head == records.parse_listed("r.json", render_json(dict(sorted(wrong.items()))))
    with pytest.raises(MalformedError, match="timeline: Expected `array`, got `str`"):
        records.parse_record("r.json", render_json(wrong))
    with pytest.raises(MalformedError):
        records.parse_listed("r.json", render_json(record)[:-2])


@given(st.one_of(st.binary(), JSON.map(lambda value: json.dumps(value).encode())))
def test_any_bytes(data: bytes) -> None:
    """Whatever stands in a file, it is a record or a MalformedError."""
    with pytest.raises(MalformedError):
        records.parse_record("r.json", data)


DAMAGES: dict[str, bytes] = {
    "garbage": b"\xff\xfe\0",
    "empty": b"",
    "no record": b"{}",
    "newer": b'{"version": 2, "anything": []}',
    "wrong types": b'{"version": 1, "job": {"id": 7, "cluster": [], "user": {}, "name": null, "start": "x"}}',
    "no time": b'{"version": 1, "job": {"id": "", "cluster": "", "user": "", "name": "", "start": 1e300}}',
    "not a number": b'{"version": 1, "job": {"id": "", "cluster": "", "user": "", "name": "", "start": NaN}}',
    "deep": b"[" * 200_000,
    "huge": b'"' + b"x" * (records.LARGEST + 10),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_record(kind: str, home: Home) -> None:
    """One sentence that names the file, each time; all other jobs are there; compaction leaves it alone."""
    for job in ("j1", "j2", "j3"):
        store_job(home, job)
    path = home.records / DAY / "bad.1.json"
    path.write_bytes(DAMAGES[kind])
    for _ in range(2):
        with Store(home) as store:
            assert {job["id"] for job in store.jobs()} == {"j1", "j2", "j3"}
            store.compact()
            (problem,) = store.problems
        assert problem.startswith(f"{path}: ")
        assert ("newer joblens" in problem) == (kind == "newer")
        assert len(problem) < 400
    assert path.exists()


def test_a_damaged_line_of_many(home: Home) -> None:
    """In a compacted file the other lines are still read."""
    for job in ("j1", "j2", "j3"):
        store_job(home, job)
    records.compact_day(home.records, DAY)
    (path,) = (home.records / DAY).iterdir()
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:100] + b"\n" + third)
    with Store(home) as store:
        assert {job["id"] for job in store.jobs()} == {"j1", "j3"}
        (problem,) = store.problems
    assert problem.startswith(f"{path}:2: not a job's record")


def test_names_of_any_letters(home: Home) -> None:
    """A name of 10 kB with control characters, quotes, newlines and broken UTF-8 is stored and shown."""
    name = "n\x1b[31m\r\n\t'\"\\;%\udce9\ud800文\u202e" * 700
    store_job(home, "j1", name=name, user=name, node=name, command=name, tags={name: name})
    with Store(home) as store:
        assert store.problems == []
        found = store.job("j1")
        json.dumps(found.to_dict(), ensure_ascii=False).encode()
        text = render_report(found, Style(False))
    assert all(letter.isprintable() for letter in text.replace("\n", ""))
    assert all(display_width(line) <= 80 for line in text.splitlines())


def test_no_infinity_in_a_file(home: Home) -> None:
    """What is no number in JSON is unknown, and not a record that nobody can read."""
    made = store_job(home, "j1")
    made.used.cores_peak = float("inf")
    made.timeline[0].cores = float("nan")
    path = records.save_record(home.records, made)
    (found,) = records.load_records(path, [])
    assert (found["used"]["cores_peak"], found["timeline"][0]["cores"]) == (None, None)


def test_the_last_record_counts(home: Home) -> None:
    """Of several records of a job the one written last counts, in whatever order the files are read."""
    made = store_job(home, "4242", name="first")
    store_job(home, "other")
    made.job.name = "second"
    records.save_record(home.records, made)
    records.compact_day(home.records, DAY)
    made.job.name = "third"
    path = records.save_record(home.records, made)
    assert path.name < "compacted"
    for _ in range(2):
        catalog = Catalog(home)
        assert sorted(job.name for job in catalog.jobs(JobFilter())) == ["made", "third"]
        catalog.close()
        home.catalog.unlink()
        records.compact_day(home.records, DAY)


def test_compacting_records(home: Home) -> None:
    """Many files become one with the same records, and again with those that come later."""
    for number in range(5):
        store_job(home, f"j{number}")
    assert records.compact_day(home.records, DAY) == 5
    assert records.compact_day(home.records, DAY) == 0
    store_job(home, "late")
    assert records.compact_day(home.records, DAY) == 2
    assert len(list((home.records / DAY).iterdir())) == 1
    assert len(Catalog(home).jobs(JobFilter())) == 6


def test_two_who_compact_records(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another has taken the files away meanwhile, nothing is lost and nothing wrong is written."""
    for number in range(3):
        store_job(home, f"j{number}")
    names = records.list_records(home.records, DAY)
    records.compact_day(home.records, DAY)
    (compacted,) = (home.records / DAY).iterdir()
    monkeypatch.setattr(records, "list_records", lambda folder, day: names)
    assert records.compact_day(home.records, DAY) == 0
    assert list((home.records / DAY).iterdir()) == [compacted]


def test_older_records_are_filled_up() -> None:
    """What a record does not say is unknown: every name that is promised is there."""
    job = {"id": "x", "cluster": "c", "user": "u", "name": "n", "start": START}
    found = records.parse_record("r.json", json.dumps({"version": 1, "job": job, "more": [1]}).encode())
    assert found["job"]["exit_code"] is None
    assert found["used"]["cpu_seconds"] is None
    assert (found["findings"], found["processes"], found["gaps"]) == ([], [], [])
    assert found.to_dict()["more"] == [1]
    assert render_report(found, Style(False)).startswith("job x  n  u  ?  UNKNOWN\n")


def test_what_a_later_version_added(home: Home) -> None:
    """Keys that are unknown here are in no way of the report, and compaction and `db check` keep them."""
    plain = {**store_job(home, "j1").to_dict(), "written": 9, "score": {"a": [1, None]}}
    plain["job"] |= {"id": "j2", "queue": "q"}
    plain["timeline"][0]["heat"] = 7
    path = home.records / DAY / "j2.9.json"
    path.write_bytes(render_json(plain))
    (home.records / DAY / "bad.1.json").write_bytes(render_json({**plain, "timeline": 7}) + b"\n")
    for _ in range(2):
        with Store(home) as store:
            found = store.job("j2").to_dict()
            assert (found["score"], found["job"]["queue"]) == ({"a": [1, None]}, "q")
            assert [point.get("heat") for point in found["timeline"]][:2] == [7, None]
            assert render_report(store.job("j2"), Style(False)).startswith("job j2  made")
            store.check()
            store.compact()
    assert not path.exists()


NAMED_PARTS = [
    ({"used": {"cpu_seconds": "many"}}, "used.cpu_seconds: Expected `int | float | null`, got `str`"),
    ({"job": {"start": -1}}, "job.start: Expected `int` >= 0"),
    ({"nodes": [{}, {"node": 7}]}, "nodes[0]: Object missing required field `node`"),
    ({"nodes": [{"node": "c1", "gaps": [{"from": 1, "to": []}]}]}, "nodes[0].gaps[0].to: Expected "),
    ({"verdict": 5}, "verdict: Expected `str`, got `int`"),
    ({"job": 7}, "job: Expected `object`, got `int`"),
]


@pytest.mark.parametrize(
    ("change", "why"), NAMED_PARTS, ids=[why.partition(":")[0] for _, why in NAMED_PARTS]
)
def test_the_part_is_named(record: dict[str, Any], change: dict[str, Any], why: str) -> None:
    """One sentence with the job, the part of its record, and what it should be."""
    parts = {
        name: {**record[name], **it} if isinstance(it, dict) and isinstance(record[name], dict) else it
        for name, it in change.items()
    }
    with pytest.raises(MalformedError) as caught:
        records.parse_record("r.json", render_json({**record, **parts}))
    assert str(caught.value).startswith("r.json: not a job's record (job j1): " + why) or "job" in change
    assert why in str(caught.value)


def test_unknown_parts_that_python_cannot_read(record: dict[str, Any], tmp_path: Path) -> None:
    """A part of a later version, nested deep or with a number of 5,000 digits: one sentence, and compaction
    leaves the file as it is."""
    text = render_json(record)[:-1]
    with pytest.raises(MalformedError, match="not a job's record"):
        records.parse_record("r.json", text + b', "later": ' + b"[" * 3000 + b"]" * 3000 + b"}")
    long = text + b', "later": 1' + b"0" * 5000 + b"}"
    with pytest.raises(MalformedError, match="record of job j1"):
        records.parse_record("r.json", long).to_dict()
    folder = tmp_path / DAY
    folder.mkdir()
    for number in (1, 2):
        (folder / f"j1.{number}.json").write_bytes(long)
    assert records.compact_day(tmp_path, DAY) == 0
    assert sorted(path.read_bytes() for path in folder.iterdir()) == [long, long]


def test_a_damaged_version_is_damage(record: dict[str, Any]) -> None:
    """Only a record whose checksum is right can be of a newer joblens."""
    sealed = records._seal(render_json({**record, "version": 1}))
    with pytest.raises(MalformedError, match="checksum mismatch"):
        records.parse_record("r.json", sealed.replace(b'"version": 1', b'"version": 3'))
    with pytest.raises(MalformedError, match="newer joblens"):
        records.parse_record("r.json", records._seal(render_json({**record, "version": 3})))


def test_null_is_unknown(record: dict[str, Any]) -> None:
    """As in records of earlier versions, for any part but those that identify a job."""
    for name in record.keys() - {"version", "written", "job", "verdict"}:
        for parse in (records.parse_record, records.parse_listed):
            found = parse("r.json", render_json({**record, name: None}))
            assert found.job.id == "j1", name
    with pytest.raises(MalformedError):
        records.parse_record("r.json", render_json({**record, "job": None}))


def test_heads_in_any_order(record: dict[str, Any]) -> None:
    """Parts that stand behind the long ones count."""
    names = ["version", "job", *[name for name in record if name not in PARTS], "used", "written", "verdict"]
    found = records.parse_listed("r.json", render_json({name: record[name] for name in names}))
    assert (found.used.cpu_seconds, found.written) == (record["used"]["cpu_seconds"], 5)


def test_records_as_mappings(record: dict[str, Any]) -> None:
    """Scripts that used the record as a dictionary go on; what a whole record does not have is not in it."""
    found = records.parse_record("r.json", render_json(record))
    assert ("used" in found, "cut" in found, "nope" in found) == (True, False, False)
    assert found.get("cut", 7) == found.get("nope", 7) == 7
    assert dict(found.job)["id"] == "j1"
    assert set(found) >= set(PARTS)
    found.job.tags = {"z": "1"}
    assert found.to_dict()["job"]["tags"] == {"z": "1"}
    with pytest.raises(KeyError):
        found["nope"]
