from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.api import Store
from joblens.core.errors import OutsideError
from joblens.store.home import Home, find_home, local_folder, make_home
from joblens.store.location import filesystem_of, safe_name

from .made import new_home, store_job

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
10.0.0.1:/home /home nfs4 rw,vers=4.2 0 0
mds@tcp:/scratch /scratch lustre rw,flock 0 0
/dev/nvme0n1 /home/local\\040disk xfs rw 0 0
gpfs0 /gpfs gpfs rw 0 0
tmpfs /run tmpfs rw 0 0
sshfs#host: /mnt/ssh fuse.sshfs rw 0 0
"""
NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/var/x", "ext4", False),
        ("/home/alice/.local/share/joblens", "nfs4", True),
        ("/home/local disk/x", "xfs", False),
        ("/homework", "ext4", False),
        ("/scratch/p1", "lustre", True),
        ("/gpfs/p1", "gpfs", True),
        ("/run/x", "tmpfs", False),
        ("/mnt/ssh/x", "fuse.sshfs", True),
    ],
)
def test_kind_of_file_system(path: str, kind: str, shared: bool) -> None:
    """What several machines may share is told from what is this machine's own, by the mounts."""
    assert find_home(path, MOUNTS)[1:3] == (kind, shared)


def test_unknown_is_taken_as_shared() -> None:
    """Where the kernel does not say, or says something new, the way that is safe everywhere is taken."""
    assert find_home("/x", "").shared
    assert find_home("/x", "what / newfs rw 0 0\n").shared


@given(st.lists(st.tuples(st.lists(NAMES, max_size=3), st.sampled_from(["ext4", "nfs4", "lustre"]))))
def test_mounts_of_any_names(mounts: list[tuple[list[str], str]]) -> None:
    """Blanks, tabs, newlines and backslashes in mount points are read back; the last and longest counts."""
    text = "".join(f"x /{'/'.join(map(escaped, point))} {kind} rw 0 0\n" for point, kind in mounts)
    for point, _ in mounts:
        path = Path("/", *point, "below")
        fitting = [(other, kind) for other, kind in mounts if path.parts[1:][: len(other)] == tuple(other)]
        longest = max(len(other) for other, _ in fitting)
        assert (
            filesystem_of(str(path), text) == [kind for other, kind in fitting if len(other) == longest][-1]
        )


def escaped(name: str) -> str:
    """As proc_mounts(5) has it."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in name)


@given(st.text())
def test_mounts_of_nonsense(text: str) -> None:
    """Whatever stands there, it is read."""
    assert filesystem_of("/some/where", text)


def test_a_link_leads_to_what_counts(tmp_path: Path) -> None:
    """The file system is that of the folder a link leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mounts = f"x / ext4 rw 0 0\ny {tmp_path}/real nfs rw 0 0\n"
    assert find_home(tmp_path / "link", mounts).shared


def on_nfs(path: Path) -> Home:
    return make_home(find_home(path, "server:/ / nfs4 rw 0 0\n"))


def test_shared_store_has_a_local_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS no database lies in the store: the catalog is in a folder that is the user's alone, is made
    from the records, and `joblens db info` says so."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    home = on_nfs(tmp_path / "store")
    store_job(home, "j1")
    store = Store(home)
    assert [job["id"] for job in store.jobs()] == ["j1"]
    assert not list(home.path.rglob("*.sqlite*"))
    assert home.catalog.parent == tmp_path / f"joblens-{os.getuid()}"
    assert home.catalog.exists()
    assert home.catalog.parent.stat().st_mode & 0o777 == 0o700
    about = store.info().about
    assert "nfs4, which several machines may share" in about
    assert str(home.catalog) in about
    store.close()
    home.catalog.unlink()
    assert [job["id"] for job in Store(home).jobs()] == ["j1"]


@pytest.mark.parametrize("trick", ["open to all", "a link", "a file"])
def test_a_local_folder_that_is_not_ours(trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not used, which is said in one sentence, and jobs are read from their records."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / f"joblens-{os.getuid()}"
    if trick == "open to all":
        folder.mkdir()
        folder.chmod(0o777)
    elif trick == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.write_text("")
    home = on_nfs(tmp_path / "store")
    store_job(home, "j1")
    store = Store(home)
    assert [job["id"] for job in store.jobs()] == ["j1"]
    (problem,) = store.problems
    assert str(folder) in problem
    assert "in memory only" in store.info().about


def test_two_stores_have_two_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local catalogs of different shared stores do not get mixed up."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert on_nfs(tmp_path / "a").catalog != on_nfs(tmp_path / "b").catalog
    assert local_folder() == tmp_path / f"joblens-{os.getuid()}"


@pytest.mark.parametrize("name", ["a 'b' \"c\"", "*?[x]{y}", "back\\slash", "näme 文", "-x", "new\nline"])
def test_odd_paths(name: str, tmp_path: Path) -> None:
    """A store can lie in a folder of any name."""
    home = new_home(tmp_path / name)
    store_job(home, "j1")
    store_job(home, "j2")
    with Store(home.path) as store:
        assert store.compact() > 0
        assert store.series("j1").times
        assert store.problems == []


@pytest.mark.parametrize("name", ["caf\udce9", "a\0b", "x" * 5000])
def test_paths_that_cannot_be(name: str, tmp_path: Path) -> None:
    """A path that is no text, or no path, is one sentence."""
    with pytest.raises(OutsideError, match=r"^cannot use the store "):
        make_home(find_home(str(tmp_path / name)))


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user nobody has listed: one sentence that says what to do."""
    for name in ("HOME", "JOBLENS_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(OutsideError, match="JOBLENS_HOME"):
        find_home()


def test_a_file_in_its_place(tmp_path: Path) -> None:
    """A file where the store should be is one sentence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutsideError, match="cannot create"):
        new_home(tmp_path / "file")


def test_only_its_owner_can_read_it(home: Home) -> None:
    """What a job did is its user's business."""
    for folder in (home.path, home.incoming, home.lake, home.records):
        assert folder.stat().st_mode & 0o777 == 0o700


@given(st.text(st.characters()), st.text(st.characters()))
def test_safe_names(one: str, other: str) -> None:
    """Any text becomes the name of a file in the same folder, and no two texts the same."""
    for text in (one, "../" * 40 + one, one * 50):
        name = safe_name(text)
        assert name
        assert len(name) <= 100
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%~")
    assert (safe_name(one) == safe_name(other)) == (one == other)


def test_safe_names_of_broken_text() -> None:
    """Bytes that are no UTF-8 and the letter that they would make together do not get the same name."""
    assert safe_name("\udcc3\udca9") != safe_name("é")
    assert safe_name("%41") != safe_name("A")
    assert safe_name("") != safe_name("%")
