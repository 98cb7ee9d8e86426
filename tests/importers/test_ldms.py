"""`joblens import ldms`: the files of LDMS' CSV store, as its manual and its source describe them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joblens.cli import main
from joblens.core.errors import MalformedError
from joblens.importers.ldms import LdmsResult, import_ldms
from joblens.importers.ldms_csv import Chunk, Source, find_sources, parse_header, read_chunks
from joblens.importers.ldms_sets import parse_cells, plan
from joblens.store.lake.compact import compact
from joblens.store.lake.lake import Lake, as_table

HEAD = "#Time,Time_usec,ProducerName,component_id,job_id,app_id,"
MEMINFO = HEAD + "MemTotal,MemFree,Active(anon),HugePages_Total\n"
# From here on 2023-11-14; the last midnight before it is 1699920000.
START = 1_700_000_000


def line(node: str, second: int, *values: object, microseconds: int = 1731, job: int = 0) -> str:
    begin = f"{START + second}.{microseconds:06d},{microseconds},{node},7,{job},0"
    return ",".join([begin, *map(str, values)]) + "\n"


def meminfo(node: str, second: int, job: int = 0) -> str:
    return line(node, second, 32_000_000, 1000 + second, 77, 5, job=job)


def bring(folder: Path, *paths: Path, cluster: str = "") -> LdmsResult:
    return import_ldms(Lake(folder), paths, cluster)


def rows(folder: Path, set_name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """What readers of the lake see."""
    lake = Lake(folder)
    files = lake.files(set_name)
    if not files:
        return []
    query = f"SELECT {columns} FROM {as_table(files)} ORDER BY node, time"
    return lake.connection.execute(query).fetchall()


def test_what_is_the_same_becomes_ours(tmp_path: Path) -> None:
    """meminfo, vmstat and loadavg are the kernel's figures: they get our names and base units."""
    store = tmp_path / "store"
    store.mkdir()
    (store / "meminfo").write_text(MEMINFO + meminfo("c1", 0) + meminfo("c2", 0, job=4242))
    (store / "loadavg").write_text(
        HEAD
        + "load1min,load5min,load15min,runnable,scheduling_entities,newest_pid\n"
        # As %.17g prints 0.2 and 0.18, see store_csv.c.
        + line("c1", 0, "0.20000000000000001", "0.17999999999999999", 0.12, 1, 80, 11206)
    )
    (store / "vmstat").write_text(HEAD + "nr_free_pages,pgpgin,pgfault\n" + line("c1", 0, 5, 2**40, 3))
    done = bring(tmp_path / "lake", store)
    assert (done.rows, done.bad, done.problems) == (4, 0, [])
    columns = (
        "epoch_ns(time), cluster, node, jobid, mem_total_bytes, active_anon_bytes, huge_pages, component_id"
    )
    assert rows(tmp_path / "lake", "memory", columns) == [
        (START * 10**9 + 1_731_000, "", "c1", "", 32_000_000 * 1024, 77 * 1024, 5, 7),
        (START * 10**9 + 1_731_000, "", "c2", "4242", 32_000_000 * 1024, 77 * 1024, 5, 7),
    ]
    loads = "load1::VARCHAR, load5::VARCHAR, load15::VARCHAR, running, tasks, last_pid"
    assert rows(tmp_path / "lake", "load", loads) == [("0.20", "0.18", "0.12", 1, 80, 11206)]
    assert rows(tmp_path / "lake", "vmstat", "nr_free_pages, pgpgin, pgfault") == [(5, 2**40, 3)]


def test_what_is_not_the_same_keeps_its_names(tmp_path: Path) -> None:
    """Another schema, and one that only has the name, are sets of LDMS' own; no two columns are alike."""
    (tmp_path / "procnetdev").write_text(
        HEAD + "rx_bytes#lo,time,RX_bytes#lo\n" + line("s1", 0, 3323644475, 2, 3)
    )
    (tmp_path / "meminfo").write_text(HEAD + "MemTotal.userdata,MemTotal.value\n" + line("s1", 0, 1, 2))
    done = bring(tmp_path / "lake", tmp_path / "procnetdev", tmp_path / "meminfo", cluster="fox")
    assert done.sets == {"ldms_procnetdev": 1, "ldms_meminfo": 1}
    found = rows(tmp_path / "lake", "ldms_procnetdev", 'cluster, "rx_bytes#lo", "time_2", "RX_bytes#lo_2"')
    assert found == [("fox", 3323644475, 2, 3)]
    assert rows(tmp_path / "lake", "ldms_meminfo", '"MemTotal.userdata", "MemTotal.value"') == [(1, 2)]


def test_headers_in_the_middle(tmp_path: Path) -> None:
    """After a restart the header comes again, also with other columns: what is not there is unknown."""
    path = tmp_path / "dstat"
    path.write_text(
        HEAD + "a,b\n" + line("c1", 0, 1, 2) + HEAD + "a,b\n" + line("c1", 1, 3, 4)
        + HEAD + "b,c\n" + line("c1", 2, 5, 6)
    )  # fmt: skip
    done = bring(tmp_path / "lake", path)
    assert (done.rows, done.bad) == (3, 0)
    assert rows(tmp_path / "lake", "ldms_dstat", "a, b, c") == [(1, 2, None), (3, 4, None), (None, 5, 6)]


def test_headers_that_come_again_and_again(tmp_path: Path) -> None:
    """What a file costs does not depend on how often its headers change: there is one part for each kind."""
    path = tmp_path / "x"
    both = [
        HEAD + "a\n" + line("c1", 2 * at, at) + HEAD + "b\n" + line("c1", 2 * at + 1, at) for at in range(300)
    ]
    path.write_text("".join(both))
    found, told = chunks(path)
    assert ([len(chunk.lines) for chunk in found], told) == ([300, 300], [])


def test_headers_in_files_of_their_own(tmp_path: Path) -> None:
    """SCHEMA.HEADER is for SCHEMA, SCHEMA.HEADER.EPOCH for SCHEMA.EPOCH, packed or not."""
    (tmp_path / "a.HEADER").write_text(HEAD + "x\n")
    (tmp_path / "a.KIND").write_text("#!ldms-kinds!timestamp,u64\n")
    (tmp_path / "a").write_text(line("c1", 0, 1))
    (tmp_path / "a.HEADER.1700000100").write_text(HEAD + "y\n")
    with gzip.open(tmp_path / "a.1700000100.gz", "wt") as file:
        file.write(line("c1", 1, 2))
    (tmp_path / "a.1700000200").write_text(line("c1", 2, 3))
    done = bring(tmp_path / "lake", tmp_path)
    assert rows(tmp_path / "lake", "ldms_a", "x, y") == [(1, None), (None, 2)]
    (problem,) = done.problems
    assert problem == f"{tmp_path}/a.1700000200:1: no header with column names; file skipped"


def test_bad_lines_are_named(tmp_path: Path) -> None:
    """Each with file and line, and all others are there."""
    path = tmp_path / "x"
    path.write_text(
        HEAD + "a,b\n"
        + line("c1", 0, 1, 2)
        + "1700000001.0017\n"
        + line("c1", 2, 1, "1\x007")
        + line("c1", 3, 3, "4,5")
        + line("", 4, 3, 4)
        + f"{START}.000001,2,c1,7,0,0,1,2\n"
        + f"{START}.000001,1,c1,7,0,0,,nan\n"
        + line("c1", 9, 7, 8).rstrip("\n")
    )  # fmt: skip
    done = bring(tmp_path / "lake", path)
    assert done.problems == [
        f"{path}:3: 1 values, but the header has 8 columns",
        f"{path}:5: 9 values, but the header has 8 columns",
        f"{path}:6: no producer name",
        f"{path}:7: no valid time",
        f"{path}:9: incomplete line",
        f"{path}:4: b is not a number",
    ]
    assert done.bad == 6
    assert rows(tmp_path / "lake", "ldms_x", "a, b") == [(None, None), (1, 2)]


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    """The screen is not filled with them."""
    (tmp_path / "x").write_text(HEAD + "a\n" + "?\n" * 100 + line("c1", 0, 1))
    done = bring(tmp_path / "lake", tmp_path / "x")
    assert (done.rows, done.bad, len(done.problems)) == (1, 100, 11)
    assert done.problems[-1] == f"{tmp_path}/x: 90 more bad lines"


def test_again(tmp_path: Path) -> None:
    """Importing twice changes nothing; nor does a copy, compaction in between, or a row written twice."""
    path, lake = tmp_path / "meminfo", tmp_path / "lake"
    path.write_text(MEMINFO + "".join(meminfo(node, at) for at in range(50) for node in ("c1", "c2")))
    assert bring(lake, path).rows == 100
    before, files = rows(lake, "memory"), sorted(map(str, lake.rglob("*.parquet")))
    again = bring(lake, path)
    assert (again.rows, again.repeated) == (0, 100)
    assert sorted(map(str, lake.rglob("*.parquet"))) == files
    # The aggregator replays its last rows into another file, and goes on.
    other = tmp_path / "meminfo.1700000049"
    other.write_text(MEMINFO + "".join(meminfo("c1", at) for at in range(40, 60)) + meminfo("c1", 59))
    more = bring(lake, other)
    assert (more.rows, more.repeated) == (10, 11)
    assert compact(Lake(lake), set) == 2
    assert bring(lake, path, other).rows == 0
    assert rows(lake, "memory")[:50] == before[:50]
    assert len(rows(lake, "memory")) == 110


def test_a_file_that_grows(tmp_path: Path) -> None:
    """What was added since is added, also when the first part was compacted meanwhile."""
    path, lake = tmp_path / "meminfo", tmp_path / "lake"
    path.write_text(MEMINFO + meminfo("c1", 0))
    bring(lake, path)
    with path.open("a") as file:
        file.write(meminfo("c1", 1))
    assert bring(lake, path).rows == 1
    assert compact(Lake(lake), set) == 2
    with path.open("a") as file:
        file.write(meminfo("c1", 2)[:-3])
    assert bring(lake, path).rows == 0
    with path.open("a") as file:
        file.write(meminfo("c1", 2)[-3:])
    assert bring(lake, path).rows == 1
    assert len(rows(lake, "memory")) == 3


def test_sets_of_one_producer_at_one_time(tmp_path: Path) -> None:
    """Two instances with other figures at the same microsecond are two rows."""
    (tmp_path / "x").write_text(HEAD + "dev,n\n" + line("c1", 0, "sda", 1) + line("c1", 0, "sdb", 1))
    assert bring(tmp_path / "lake", tmp_path / "x").rows == 2
    assert bring(tmp_path / "lake", tmp_path / "x").rows == 0


def test_over_midnight_and_in_milliseconds(tmp_path: Path) -> None:
    """time_format=1 has the rest of the microseconds apart; a day has a folder."""
    midnight = 1_700_006_400_000
    (tmp_path / "x").write_text(
        f"#Time_msec,Time_usec,ProducerName,n\n{midnight - 1},999,c1,1\n{midnight},0,c1,2\n"
    )
    bring(tmp_path / "lake", tmp_path / "x")
    times = rows(tmp_path / "lake", "ldms_x", "epoch_ns(time)")
    assert times == [((midnight - 1) * 10**6 + 999_000,), (midnight * 10**6,)]
    assert sorted(path.name for path in (tmp_path / "lake/set=ldms_x").iterdir()) == [
        "date=2023-11-14",
        "date=2023-11-15",
    ]


def test_numbers_of_all_kinds(tmp_path: Path) -> None:
    """Whole where 64 bits are enough, else a DOUBLE; quoted text with commas is one cell."""
    (tmp_path / "x").write_text(
        '#"Time","Time_usec","ProducerName","a","b","c","d"\n'
        f'{START}.000001,1,c1,{2**63 - 1},{2**64 - 1},-1.5e3,"x,1"\n'
    )
    bring(tmp_path / "lake", tmp_path / "x")
    found = rows(tmp_path / "lake", "ldms_x", "a, b, c, d")
    assert found == [(2**63 - 1, float(2**64 - 1), -1500.0, "x,1")]


def test_a_column_that_changes_its_kind(tmp_path: Path) -> None:
    """Numbers in one file, words in the next, and importing both again is still nothing new."""
    (tmp_path / "x.1700000000").write_text(HEAD + "a\n" + line("c1", 0, 1))
    (tmp_path / "x.1700000001").write_text(
        HEAD + "a\n" + line("c1", 0, "a") + line("c1", 1, "b") + line("c1", 3, 1.5)
    )
    (tmp_path / "x.1700000002").write_text(HEAD + "a\n" + line("c1", 2, 0.5))
    paths = sorted(tmp_path.glob("x.*"))
    assert bring(tmp_path / "lake", *paths).rows == 5
    assert bring(tmp_path / "lake", *paths).rows == 0


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what it did; a file that is none is one sentence and exit code 3."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    (tmp_path / "meminfo").write_text(MEMINFO + meminfo("c1", 0) + "?\n")
    assert main(["import", "ldms", str(tmp_path / "meminfo")]) == 0
    said = capsys.readouterr()
    assert said.out == "1 new row from 1 file: memory 1\n1 bad line skipped\n"
    assert said.err == f"joblens: {tmp_path}/meminfo:3: 1 values, but the header has 10 columns\n"
    (tmp_path / "none").write_text("hello\n")
    assert main(["import", "ldms", "--json", str(tmp_path / "none")]) == 3
    assert json.loads(capsys.readouterr().out)["unusable"] == 1
    assert main(["import", "ldms", str(tmp_path / "nowhere")]) == 3
    assert capsys.readouterr().err == (
        f"joblens: {tmp_path}/nowhere: No such file or directory; file skipped\n"
    )


TEXT = (MEMINFO + "".join(meminfo("c1", at) for at in range(2000))).encode()
PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum"])
@pytest.mark.parametrize("of", ["data", "header"])
def test_packed_data_that_is_damaged(tmp_path: Path, kind: str, damage: str, of: str) -> None:
    """One sentence with file and byte. Nothing of it is taken, and all of it once it is repaired; what lies
    beside it comes at once."""
    sound = PACKERS[kind](TEXT)
    middle = len(sound) // 2
    damaged = {
        "cut": sound[:middle],
        "flipped": sound[:middle] + bytes([sound[middle] ^ 16]) + sound[middle + 1 :],
        "checksum": sound[:-6] + bytes([sound[-6] ^ 1]) + sound[-5:],
    }[damage]
    (tmp_path / "vmstat").write_text(HEAD + "a\n" + line("c1", 0, 5))
    path = tmp_path / (f"meminfo.1700000000.{kind}" if of == "data" else f"x.HEADER.{kind}")
    path.write_bytes(damaged)
    if of == "header":
        (tmp_path / "x").write_text(line("c1", 0, 1, 2, 3, 4))
    lake = tmp_path / "lake"
    done = bring(lake, *tmp_path.glob("[!l]*"))
    assert (done.sets, done.unusable, done.bad) == ({"ldms_vmstat": 1}, 1, 0)
    (problem,) = done.problems
    where, _, what = problem.partition(": ")
    assert where == str(path)
    assert re.fullmatch(r"compressed data is damaged near byte \d+: .+; file skipped", what)
    path.write_bytes(sound)
    again = bring(lake, *tmp_path.glob("[!l]*"))
    assert (again.rows, again.unusable) == (2000 if of == "data" else 1, 0)


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_in_other_ways(tmp_path: Path, kind: str) -> None:
    """By what a file begins with; of several parts too, as tools append them."""
    pack = PACKERS[kind]
    (tmp_path / f"meminfo.{kind}").write_bytes(pack(TEXT[:5000]) + pack(TEXT[5000:]))
    (tmp_path / "loadavg").write_bytes(pack((HEAD + "load1min\n" + line("c1", 0, 0.5)).encode()))
    done = bring(tmp_path / "lake", tmp_path)
    assert (done.sets, done.problems) == ({"memory": 2000, "load": 1}, [])


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A sentence each, and the rest comes: another packer, a pipe without a writer, a socket, nothing."""
    zstd, pipe, place = tmp_path / "a.zst", tmp_path / "pipe", tmp_path / "socket"
    zstd.write_bytes(b"\x28\xb5\x2f\xfd and so on")
    os.mkfifo(pipe)
    (tmp_path / "b.gz").write_text("as it is\n")
    (tmp_path / "x").write_text(HEAD + "a\n" + line("c1", 0, 1))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
        paths = [zstd, pipe, place, tmp_path / "b.gz", tmp_path / "none", tmp_path / "x"]
        done = bring(tmp_path / "lake", *paths)
    assert done.problems == [
        f"{zstd}: zstd is not supported; decompress it first (zstd -d); file skipped",
        f"{pipe}: not a regular file; file skipped",
        f"{place}: No such device or address; file skipped",
        f"{tmp_path}/b.gz: not compressed as its name says (.gz); file skipped",
        f"{tmp_path}/none: No such file or directory; file skipped",
    ]
    assert (done.rows, done.unusable) == (1, 5)


@pytest.mark.parametrize(
    ("time", "word"),
    [
        ("9999999999.000001,1", "time after the year 2254"),
        ("9000000000.000001,1", "time after the year 2254"),
        *(
            (f"{bad},1", "no valid time")
            for bad in ("-1.000001", "nan", "1e308", "", "inf", "99999999999.000001")
        ),
        ("1700000000.000001,", "no valid time"),
        ("1700000000.000001,-1", "no valid time"),
        ("0x10.000001,1", "no valid time"),
        ("1e9.000001,1", "no valid time"),
    ],
)
def test_times_that_are_none(tmp_path: Path, time: str, word: str) -> None:
    """The line is named and left out."""
    path = tmp_path / "x"
    path.write_text(f"#Time,Time_usec,ProducerName,a\n{time},c1,5\n{START}.000001,1,c1,6\n")
    done = bring(tmp_path / "lake", path)
    assert (done.rows, done.bad, done.problems) == (1, 1, [f"{path}:2: {word}"])


def test_milliseconds_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(f"#Time_msec,Time_usec,ProducerName,a\n9999999999999,1,c1,5\n{START}000,1,c1,6\n")
    done = bring(tmp_path / "lake", path)
    assert (done.rows, done.problems) == (1, [f"{path}:2: time after the year 2254"])


def test_numbers_beyond_all_bounds(tmp_path: Path) -> None:
    """Unknown where no number of ours can hold them, also after they were put into base units."""
    path = tmp_path / "loadavg"
    path.write_text(HEAD + "load1min\n" + line("c1", 0, "1e308") + line("c1", 1, "0.5"))
    (tmp_path / "x").write_text(HEAD + "a\n" + line("c1", 0, "9" * 400) + line("c1", 1, "9" * 5000))
    memory = MEMINFO + line("c1", 0, "1e308", 1, 1, 1) + line("c1", 1, "1.5", 1, 1, 1)
    (tmp_path / "meminfo").write_text(memory)
    done = bring(tmp_path / "lake", *(tmp_path / name for name in ("loadavg", "x", "meminfo")))
    assert (done.rows, done.bad) == (5, 1)
    assert rows(tmp_path / "lake", "load", "load1") == [(1e308,), (0.5,)]
    assert rows(tmp_path / "lake", "memory", "mem_total_bytes") == [(None,), (1536.0,)]


def test_odd_bytes_and_lengths(tmp_path: Path) -> None:
    """Bytes that are no text, NUL, a line of 9 MiB, a million columns: one sentence each."""
    path = tmp_path / "x"
    path.write_bytes(
        (HEAD + "a,b\n").encode()
        + line("c\0d", 0, 1, 2).encode()
        + b"x" * (9 << 20)
        + b"\n"
        + line("c1", 1, 1, 2).encode().replace(b"c1", b"c\xff")
    )
    wide, wider = tmp_path / "wide", tmp_path / "wider"
    wide.write_text(HEAD + ",".join(f"c{number}" for number in range(5000)) + "\n" + line("c1", 0, 1))
    wider.write_text(HEAD + ",".join(f"c{number}" for number in range(1_000_000)) + "\n" + line("c1", 0, 1))
    done = bring(tmp_path / "lake", path, wide, wider)
    assert (done.rows, done.unusable) == (2, 2)
    assert done.problems == [
        f"{path}:3: line too long",
        f"{wide}:1: 5006 columns; at most 4000 can be stored; lines up to the next header are skipped",
        f"{wide}:2: no header with column names; file skipped",
        f"{wider}:1: line too long",
        f"{wider}:2: no header with column names; file skipped",
    ]


def chunks(path: Path) -> tuple[list[Chunk], list[int]]:
    told: list[int] = []
    source = Source(path, "x", None)
    return list(read_chunks(source, lambda number, what: told.append(number))), told


CELL = st.sampled_from(["1", "", "-2.5", "x", '"', '"a,b"', "nan", "9" * 30, "c1", "#", "é", "\x00", "1e999"])
LINES = st.lists(
    st.lists(CELL, max_size=4).map(",".join)
    | st.tuples(st.integers(0, 99), st.lists(CELL, max_size=3)).map(
        lambda it: f"{START + it[0]}.000001,1,c1," + ",".join(it[1])
    )
    | st.sampled_from(
        ["#Time,Time_usec,ProducerName,a,b", "#Time,Time_usec,ProducerName,a", "#Time", "#!ldms-kinds!"]
    )
    | st.text(max_size=40),
    max_size=12,
)


@given(LINES)
@settings(max_examples=200)
def test_any_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Each line is a header, a row, or named as bad: none is lost without a word."""
    path = tmp_path_factory.mktemp("any") / "x"
    data = "\n".join(["#Time,Time_usec,ProducerName,a", *lines, ""]).encode("utf-8", "replace")
    path.write_bytes(data)
    found, told = chunks(path)
    taken = [it.number for chunk in found for it in chunk.lines]
    assert len(set(taken)) == len(taken)
    texts = dict(enumerate(data.split(b"\n")[:-1], 1))
    heads = {number for number, text in texts.items() if text.startswith(b"#")}
    assert set(taken) | set(told) | heads == set(texts)
    assert not set(taken) & (set(told) | heads)


@given(st.binary(max_size=300))
@settings(max_examples=200)
@example(b"\x1f\x8b\x08\x00")
def test_any_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever it is, packed or not: rows, words about it, or MalformedError."""
    for name in ("x", "x.gz"):
        path = tmp_path_factory.mktemp("any") / name
        path.write_bytes(data)
        try:
            chunks(path)
        except MalformedError:
            continue


@given(LINES)
@settings(max_examples=30)
def test_any_lines_into_the_lake(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """All that is read can be stored, and is there once after it was brought twice."""
    folder = tmp_path_factory.mktemp("any")
    path = folder / "x"
    path.write_text("\n".join(["#Time,Time_usec,ProducerName,a", *lines, ""]), "utf-8", "replace")
    first = bring(folder / "lake", path)
    again = bring(folder / "lake", path)
    assert again.rows == 0
    assert again.bad == first.bad
    assert len(rows(folder / "lake", "ldms_x")) == first.rows


@given(st.lists(CELL | st.text(max_size=8), min_size=1, max_size=20))
def test_any_cells(cells: list[str]) -> None:
    """A column is numbers or text; a bad cell is only what is no number."""
    found = parse_cells(cells)
    assert len(found.values) == len(cells)
    assert all(found.values[at] is None for at in found.bad)


@given(st.lists(st.text(max_size=12), max_size=8), st.text(min_size=1, max_size=20))
def test_any_header(names: list[str], schema: str) -> None:
    """No two columns of the lake have the same name, whatever the header says."""
    text = "#" + ",".join(["Time", "Time_usec", "ProducerName", *(name.replace('"', "") for name in names)])
    header = parse_header("x", text.replace("\n", "").replace("\r", ""))
    stored = [target.name.lower() for _, target in plan(schema, header).targets]
    assert len(set(stored) | {"time", "cluster", "node", "jobid"}) == len(stored) + 4


def test_what_is_found(tmp_path: Path) -> None:
    """Folders are looked through, hidden files are not."""
    (tmp_path / "c").mkdir()
    for name in ("c/a", "c/a-1700000000", ".hidden", "c/a.HEADER.1700000000"):
        (tmp_path / name).write_text("")
    found = [(str(it.path.relative_to(tmp_path)), it.schema) for it in find_sources([tmp_path], pytest.fail)]
    assert found == [("c/a", "a"), ("c/a-1700000000", "a")]
