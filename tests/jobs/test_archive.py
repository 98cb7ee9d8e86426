"""Archives of captured jobs: what was written is read, and anything else is refused."""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.jobs.archive import Manifest, NodeRecords, Source, open_archive, write_archive
from store.made import START

from .archives import change_manifest, make_archive, make_job, make_records, read_members, rewrite


def _read(path: Path) -> tuple[Manifest, list[bytes]]:
    with open_archive(path) as archive:
        files = archive.manifest.files
        return archive.manifest, [archive.read_records(number) for number in range(len(files))]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """The job, its tags and the records of each node; only the owner can read the file."""
    path = make_archive(tmp_path, nodes=3, tags={"exp": "7"}, problems=["c4 is missing"])
    manifest, records = _read(path)
    assert (manifest.job.id, manifest.job.cluster, manifest.tags) == ("42", "fox", {"exp": "7"})
    assert [file.node for file in manifest.files] == ["c1", "c2", "c3"]
    assert records == [make_records(100 * number) for number in (1, 2, 3)]
    assert manifest.problems == ["c4 is missing"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [it.name for it in tmp_path.iterdir()] == ["42.joblens"]


def test_the_same_records_have_the_same_digest(tmp_path: Path) -> None:
    """Also if they were staged at another time; other records have another."""
    one = _read(make_archive(tmp_path))[0]
    again = one.replace(end=one.end + 60, joblens="9")
    other = one.replace(files=[NodeRecords(node="c1", bytes=1, sha256="0" * 64)])
    assert one.digest == again.digest != other.digest


def test_records_that_could_not_be_written(tmp_path: Path) -> None:
    """Their file says so by its mode, and the archive in words."""
    records = tmp_path / "records"
    records.write_bytes(make_records())
    records.chmod(0o700)
    made = Manifest(job=make_job(), start=START, end=START + 1, problems=["c2 is missing"])
    made = write_archive(tmp_path / "42.joblens", made, [Source("c1", records)])
    why = "capture on c1: processes can be missing, as the disk was full, or files may not be larger"
    assert made.problems == ["c2 is missing", why]
    assert _read(tmp_path / "42.joblens")[0] == made


def _link(path: Path) -> Path:
    entry = zipfile.ZipInfo("records/0.capture")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return rewrite(path, [(entry, b"/etc/passwd"), ("manifest.json", read_members(path)["manifest.json"])])


def _added(name: str) -> Callable[[Path], Path]:
    return lambda path: rewrite(path, [*read_members(path).items(), (name, b"x")])


def _twice(path: Path) -> Path:
    members = [*read_members(path).items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rewrite(path, [*members, members[0]])


def _cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-30])
    return path


def _flipped(path: Path) -> Path:
    """In the compressed records."""
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    return path


def _other_records(path: Path) -> Path:
    """Sound by the checksum of ZIP, but not those of the manifest."""
    return rewrite(path, [*{**read_members(path), "records/0.capture": make_records(7)}.items()])


def _pipe(path: Path) -> Path:
    path.unlink()
    os.mkfifo(path)
    return path


def _text(path: Path) -> Path:
    path.write_text("not an archive\n" * 10)
    return path


def _bomb(path: Path) -> Path:
    """32 MiB of zeros in 32 KiB."""
    return rewrite(path, [("manifest.json", bytes(32 << 20))])


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a path": (_added("../../escaped"), "manifest and content differ: '../../escaped'"),
    "an absolute path": (_added("/tmp/escaped"), "manifest and content differ: '/tmp/escaped'"),
    "a link": (_link, "'records/0.capture' is not a regular file"),
    "twice": (_twice, "'records/0.capture' is in it twice"),
    "cut off": (_cut, "truncated, or not an archive of joblens"),
    "flipped": (_flipped, "records/0.capture: "),
    "other records": (_other_records, "records/0.capture: checksum mismatch"),
    "a bomb": (_bomb, "manifest.json is larger than 16,777,216 bytes"),
    "a pipe": (_pipe, "not a regular file"),
    "a text": (_text, "truncated, or not an archive of joblens"),
    "nothing": (lambda path: rewrite(path, []), "it has no manifest"),
    "no JSON": (lambda path: rewrite(path, [("manifest.json", b"{")]), "damaged manifest"),
    "another format": (lambda path: change_manifest(path, format="x"), "not an archive of joblens"),
    "newer": (lambda path: change_manifest(path, version=99), "version 99 of a newer joblens"),
    "wrong types": (lambda path: change_manifest(path, job=[1]), "damaged manifest: job: Expected `object`"),
    "wrong times": (lambda path: change_manifest(path, end=1e300), "damaged manifest: end: "),
    "far times": (lambda path: change_manifest(path, end=2e11), "the end of capture is no time"),
    "times reversed": (lambda path: change_manifest(path, end=1.0), "the end of capture is no time"),
    "no job": (lambda path: change_manifest(path, job={**make_job("").to_dict()}), "the job has no id"),
    "a file too many": (lambda path: change_manifest(path, files=[]), "manifest and content differ"),
    "too large": (
        lambda path: change_manifest(path, files=[{"node": "c1", "bytes": 1 << 40, "sha256": "0" * 64}]),
        "damaged manifest: files[0].bytes: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(name: str, tmp_path: Path) -> None:
    """With one sentence that names the file, and nothing is written."""
    make, why = HOSTILE[name]
    path = make(make_archive(tmp_path))
    with pytest.raises(MalformedError) as failed:
        _read(path)
    assert str(failed.value).startswith(f"{path}: ")
    assert why in str(failed.value)
    assert "\n" not in str(failed.value)
    assert [it.name for it in tmp_path.iterdir()] == ["42.joblens"]


@cache
def _sound() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return make_archive(Path(folder), nodes=2).read_bytes()


@settings(deadline=None)
@given(st.data())
def test_a_changed_archive_is_refused_or_the_same(data: st.DataObject) -> None:
    """Whatever bytes are changed, added or cut off: records are as they were staged, or none are read."""
    with tempfile.TemporaryDirectory() as folder:
        path, whole = Path(folder) / "x.joblens", bytearray(_sound())
        path.write_bytes(whole)
        before = _read(path)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, max(len(whole) - 1, 0)))
            piece = data.draw(st.binary(max_size=8))
            whole[at : at + data.draw(st.integers(0, 8))] = piece
        path.write_bytes(whole[: data.draw(st.integers(len(whole) // 2, len(whole)))])
        with suppress(MalformedError):
            assert _read(path) == before
