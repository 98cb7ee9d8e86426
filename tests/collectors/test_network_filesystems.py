"""Lustre and NFS: what programs did there, as the node's own kernel has counted it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.sampler import Sampler
from joblens.collectors.lustre import SCHEMA as LUSTRE
from joblens.collectors.lustre import lustre, parse_stats
from joblens.collectors.nfs import NFS, OPERATION, nfs, parse_mountstats
from joblens.core.config import Settings
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, Rows
from joblens.machine_recording import Recorder, record

NODES = Path(__file__).parents[1] / "nodes"
NODE = NODES / "lustre-nfs"
MOUNTSTATS = "proc/self/mountstats"
STATS = (NODES / "cray/sys/kernel/debug/lustre/llite/scratch-ffff9bc043537800/stats").read_bytes()
MOUNTS = (NODE / MOUNTSTATS).read_bytes()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return shutil.copytree(NODE, tmp_path / "tree")


def value(rows: Rows, column: str, *key: str) -> float | None:
    """In base units, of the one row whose key begins so."""
    at = rows.schema.position(column)
    (number,) = [number for number, found in enumerate(rows.keys) if found[: len(key)] == key]
    found = rows.row(number)[at]
    return None if found == ABSENT else rows.schema.columns[at].in_base_units(found)


# Lustre


def test_lustre_by_hand() -> None:
    """The last number of a line is the sum, in Lustre 2.15 the last but one; the first is how often."""
    (old,) = lustre(Host(str(NODE)))()
    assert value(old, "read_bytes", "home") == 145_121_869
    assert value(old, "writes", "home") == 13_641
    assert value(old, "unlinks", "home") == 2
    (new,) = lustre(Host(str(NODES / "cray")))()
    assert value(new, "read_bytes", "scratch") == 1 << 30
    assert value(new, "reads", "scratch") == 2000
    assert value(new, "getattrs", "scratch") == 950


def test_lustre_names() -> None:
    """A file system's name may have a dash; what is behind the last one is the client's."""
    (rows,) = lustre(Host(str(NODE)))()
    assert rows.keys == (("home", "ffff880a1b2c3d00"), ("work-2", "ffff880a1b2c3e00"))


def test_what_has_not_happened_is_zero() -> None:
    """The client leaves out such lines, so that the first read of a job is not lost to it."""
    (rows,) = lustre(Host(str(NODE)))()
    assert value(rows, "read_bytes", "work-2") == 0
    assert value(rows, "opens", "work-2") == 0


class OthersHost(Host):
    """As an ordinary user sees it: debugfs is root's, whatever is in it."""

    def read(self, path: str) -> bytes:
        self._refuse(path)
        return super().read(path)

    def list(self, path: str) -> list[str]:
        self._refuse(path)
        return super().list(path)

    def _refuse(self, path: str) -> None:
        if path.startswith("sys/kernel/debug"):
            raise PermissionError(13, "Permission denied", path)


def test_lustre_only_for_root() -> None:
    """File systems are named, marked as not readable, and absent; no reading fails."""
    log: list[str] = []
    sampler = Sampler(OthersHost(str(NODES / "cray")), Settings(), log.append)
    sampler.sample(0)
    rows = sampler.latest["lustre"].rows
    assert rows.keys == (("scratch", "ffff9bc043537800"),)
    assert rows.values == [0] + [ABSENT] * (len(LUSTRE.columns) - 1)
    assert log == []


def test_no_lustre_for_a_user(tmp_path: Path) -> None:
    """An inaccessible debugfs does not imply that Lustre is in it."""
    with pytest.raises(FileNotFoundError):
        lustre(OthersHost(str(tmp_path)))()


def test_lustre_is_unmounted(tree: Path) -> None:
    """The other one is read on; when the last one is gone there is nothing to read."""
    reading = lustre(Host(str(tree)))
    first = reading()[0]
    assert reading()[0].keys is first.keys
    for name in ("home-ffff880a1b2c3d00", "work-2-ffff880a1b2c3e00"):
        shutil.rmtree(tree / "proc/fs/lustre/llite" / name)
        if name.startswith("home"):
            assert [key[0] for key in reading()[0].keys] == ["work-2"]
    with pytest.raises(FileNotFoundError):
        reading()


# NFS


def test_nfs_by_hand() -> None:
    """Bytes of programs and of the server apart; times are milliseconds; errors came later."""
    mounts, operations = nfs(Host(str(NODE)))()
    assert value(mounts, "read_bytes", "/home") == 1_207_640_230
    assert value(mounts, "server_read_bytes", "/home") == 1_210_214_218
    assert value(mounts, "closes", "/home") == 77
    assert value(mounts, "delays", "/home") == 3
    assert value(operations, "execute_seconds", "/home", "READ") == 79_407 / 1000
    assert value(operations, "errors", "/home", "ACCESS") == 7
    assert value(operations, "errors", "/data/with space", "GETATTR") is None
    sent_again = (value(operations, "transmissions", "/home", "READ") or 0) - 1298
    assert sent_again == 1310 - 1298


def test_time_below_zero_is_absent() -> None:
    """A kernel that has subtracted too much shows nearly 2^64 ms."""
    _, operations = nfs(Host(str(NODE)))()
    assert value(operations, "queue_seconds", "/home", "ACCESS") is None
    assert value(operations, "response_seconds", "/home", "ACCESS") == 1_667_369_447 / 1000


def test_each_mount_once() -> None:
    """A bind mount has the same counters again; unused operations have no row."""
    mounts, operations = nfs(Host(str(NODE)))()
    assert mounts.keys == (("/home", "server:/export1"), ("/data/with space", "server:/export2"))
    assert operations.keys == (
        ("/home", "NULL"),
        ("/home", "READ"),
        ("/home", "ACCESS"),
        ("/data/with space", "GETATTR"),
    )


@pytest.mark.parametrize(
    ("escaped", "name"),
    [(rb"/a\040b", "/a b"), (rb"/a\134040", "/a\\040"), (rb"/tab\011x", "/tab\tx"), (b"/\xff", "/\ufffd")],
)
def test_names_from_outside(escaped: bytes, name: str) -> None:
    """Escapes as in fstab(5); invalid UTF-8 is replaced."""
    (mount,) = parse_mountstats(b"device server:/e mounted on %s with fstype nfs4 statvers=1.1\n" % escaped)
    assert mount.mount == name
    assert set(mount.values) == {ABSENT}


def test_a_mount_covers_another() -> None:
    """At one place only the last mount can be seen."""
    text = b"device a:/%d mounted on /x with fstype nfs statvers=1.1\n\tbytes:\t%d 0 0 0 0 0 0 0\n"
    (mount,) = parse_mountstats(text % (1, 11) + text % (2, 22))
    assert (mount.export, mount.values[0]) == ("a:/2", 22)


def test_keys_stay_the_same(tree: Path) -> None:
    """A new operation changes the keys of operations and not those of mounts."""
    reading = nfs(Host(str(tree)))
    first = reading()
    (tree / MOUNTSTATS).write_bytes(MOUNTS.replace(b"WRITE: 0 0", b"WRITE: 1 1"))
    second = reading()
    assert second[0].keys is first[0].keys
    assert ("/home", "WRITE") in second[1].keys


def test_no_nfs(tmp_path: Path) -> None:
    """Every machine has the file; without an NFS mount there is nothing to read in it."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / MOUNTSTATS).write_text("device proc mounted on /proc with fstype proc\n")
    with pytest.raises(FileNotFoundError):
        nfs(Host(str(tmp_path)))()


def test_recorded_mounts_have_no_user_names(tree: Path, tmp_path: Path) -> None:
    """Servers, addresses, makers and people are not in a recording, and counters are."""
    head = b"device nas7.example.org:/vol/carol mounted on /home/carol with fstype nfs4 statvers=1.1\n"
    options = b"\topts:\trw,vers=4.2,clientaddr=10.1.2.3,addr=fd00::7\n"
    maker = b"\timpl_id:\tname='Maker',domain='maker.com'\n"
    counted = b"\tbytes:\t1 2 3 4 5 6 7 8\n"
    (tree / MOUNTSTATS).write_bytes(head + options + maker + counted)
    (tree / "etc/passwd").write_text("carol:x:1001:1001:::\n")
    record(Recorder(str(tree)), str(tmp_path / "recording"), lambda message: None)
    text = (tmp_path / "recording" / MOUNTSTATS).read_bytes()
    head = b"device server:/export1 mounted on /home/user1 with fstype nfs4 statvers=1.1\n"
    assert text == head + counted


# Whatever the files hold


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    """Cut off, a piece replaced or doubled, or other columns."""
    first = draw(st.integers(0, len(text)))
    last = draw(st.integers(first, len(text)))
    piece = draw(
        st.one_of(
            st.binary(max_size=40),
            st.from_regex(
                rb"[a-z_]{1,9} -?[0-9]{1,25} samples \[[a-z]*\]( [0-9]{1,25}){0,4}\n", fullmatch=True
            ),
            st.from_regex(rb"\t *[A-Z]{1,9}:( -?[0-9]{1,25}){0,10}\n", fullmatch=True),
        )
    )
    return draw(
        st.sampled_from([text[:first], text[:first] + piece + text[last:], text[:last] + text[first:]])
    )


@given(damaged(STATS))
def test_damaged_lustre(data: bytes) -> None:
    """As many numbers as columns, or malformed."""
    with contextlib.suppress(MalformedError):
        values = parse_stats("path", data)
        assert len(values) == len(LUSTRE.columns) - 1
        assert all(ABSENT <= number < 1 << 63 for number in values)


@given(damaged(MOUNTS))
def test_damaged_mountstats(data: bytes) -> None:
    """Mounts whose numbers fit their columns, each place once, or malformed."""
    with contextlib.suppress(MalformedError):
        mounts = parse_mountstats(data)
        assert len({mount.mount for mount in mounts}) == len(mounts)
        for mount in mounts:
            assert len(mount.values) == len(NFS.columns)
            assert all(len(row) == len(OPERATION.columns) for row in mount.operations.values())
            assert all(ABSENT <= number < 1 << 63 for number in mount.values)
