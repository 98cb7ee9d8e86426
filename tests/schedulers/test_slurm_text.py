"""Times, durations, exit codes, states and ids in Slurm's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.schedulers.slurm.fields import (
    JobId,
    State,
    parse_duration,
    parse_exit,
    parse_job_id,
    parse_limit,
    parse_span,
    parse_state,
    parse_time,
)

UNKNOWN = ["Unknown", "None", "NONE", "N/A", "INVALID", "(null)", "", "None assigned"]


@pytest.mark.parametrize("text", [*UNKNOWN, "0", "4294967294", "18446744073709551614"])
def test_no_time(text: str) -> None:
    """Slurm has many words for a time that it does not know, and some numbers."""
    assert parse_time(text) is None


def test_time() -> None:
    """Seconds since 1970, local time, time of another zone, and with the zone beside it."""
    assert parse_time("1794800603") == 1_794_800_603.0
    local = time.mktime((2026, 11, 16, 3, 43, 23, 0, 0, -1))
    assert parse_time("2026-11-16T03:43:23") == local
    assert parse_time("2026-11-16T03:43:23", UTC) == 1_794_800_603.0
    assert parse_time("2026-11-16T04:43:23", timezone(timedelta(hours=1))) == 1_794_800_603.0
    assert parse_time("2026-11-16T04:43:23+01:00", UTC) == 1_794_800_603.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93_784.0),
        ("02:03:04", 7384.0),
        ("2:00", 120.0),
        ("22:53.824", 1373.824),
        ("1-00", 86_400.0),
        ("1-02:30", 95_400.0),
        ("365-00:00:00", 31_536_000.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        *((word, None) for word in UNKNOWN),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


def test_limit() -> None:
    """As text, or in minutes."""
    assert [
        parse_limit(text) for text in ("400", "1:00:00", "UNLIMITED", "Partition_Limit", "4294967295")
    ] == [
        24_000.0,
        3600.0,
        None,
        None,
        None,
    ]


def test_exit() -> None:
    found = [parse_exit(text) for text in ("0:0", "3:0", "0:9", "0:125", "1:0:1", "")]
    assert found == [(0, None), (3, None), (0, 9), (0, 125), (1, None), (None, None)]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1000", State("CANCELLED", 1000)),
        ("CANCELLED+", State("CANCELLED")),
        ("NODE_FAIL", State("NODE_FAIL")),
        ("COMPLETING", State("COMPLETING")),
        ("RUNNING,COMPLETING", State("RUNNING")),
        ("COMPLETING,CANCELLED", State("CANCELLED")),
        ("OOM", State("OUT_OF_MEMORY")),
        ("R", State("RUNNING")),
        ("REQUEUED", State("REQUEUED")),
        ("PENDING,REQUEUED", State("REQUEUED")),
        ("PENDING,COMPLETING", State("PENDING")),
        ("RUNNING,RESIZING", State("RUNNING")),
        ("PENDING,RESIZING", State("RESIZING")),
    ],
)
def test_state(text: str, state: State) -> None:
    """One word, without what is set beside it."""
    assert parse_state(text) == state


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("4242", JobId("4242")),
        ("4200_7", JobId("4200", task="7")),
        ("4200_[1-10%2]", JobId("4200", task="[1-10%2]")),
        ("4200_[1,3-5,...]", JobId("4200", task="[1,3-5,...]")),
        ("4300+1", JobId("4300", offset="1")),
        ("4300+1.batch", JobId("4300", offset="1", step="batch")),
        ("4200_7.0", JobId("4200", task="7", step="0")),
        ("4242.extern", JobId("4242", step="extern")),
        ("4242.0+1", JobId("4242", step="0+1")),
    ],
)
def test_job_id(text: str, id: JobId) -> None:
    assert parse_job_id(text) == id


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "4242;rm", "4242 1", "4200_", "4200_[", "4242.", "../4242", "٤٢"]
)
def test_no_job_id(text: str) -> None:
    """Ids become parts of commands: nothing else gets through."""
    with pytest.raises(MalformedError):
        parse_job_id(text)


@pytest.mark.parametrize(
    "parse", [parse_time, parse_duration, parse_limit, parse_exit, parse_state, parse_job_id]
)
@given(text=st.text() | st.text(alphabet="0123456789-:.T_+[]% batchUNLIMITED"))
def test_garbage(parse: Callable[[str], object], text: str) -> None:
    """A value, or MalformedError."""
    with suppress(MalformedError):
        parse(text)


@given(st.integers(0, 1 << 31), st.integers(0, 999))
def test_durations_as_slurm_writes_them(seconds: int, thousandths: int) -> None:
    rest = time.strftime("%H:%M:%S", time.gmtime(seconds % 86_400))
    assert parse_duration(f"{seconds // 86_400}-{rest}") == seconds
    assert parse_duration(f"{seconds % 60:02}:{seconds % 59:02}.{thousandths:03}") == pytest.approx(
        seconds % 60 * 60 + seconds % 59 + thousandths / 1000
    )


# Clocks in Oslo: from 2 to 3 on 29 March 2026, from 3 back to 2 on 25 October.
OSLO = "CET-1CEST,M3.5.0,M10.5.0/3"
FIRST_HALF_PAST_TWO = 1792888200.0  # 00:30 UTC


@pytest.fixture
def in_oslo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", OSLO)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_oslo")
@pytest.mark.parametrize(
    ("start", "end", "elapsed", "expected"),
    [
        # Both within the hour that is there twice: of themselves the first, by their order, by what it took.
        ("02:30:00", "02:40:00", "", (0, 600)),
        ("02:30:00", "02:40:00", "600", (0, 600)),
        ("02:30:00", "02:40:00", "4200", (0, 4200)),
        ("02:40:00", "02:30:00", "", (600, 3600)),
        ("02:40:00", "02:30:00", "00:50:00", (600, 3600)),
        # One of them is not.
        ("01:30:00", "02:30:00", "01:00:00", (-3600, 0)),
        ("01:30:00", "02:30:00", "02:00:00", (-3600, 3600)),
        ("02:30:00", "03:30:00", "7200", (0, 7200)),
        ("02:30:00", "03:30:00", "3600", (3600, 7200)),
        ("02:30:00", "03:30:00", "what", (0, 7200)),
        # No elapsed time, or none of them at all.
        ("02:30:00", "Unknown", "", (0, None)),
        ("None", "02:30:00", "00:00:00", (None, 0)),
        ("no time", "02:30:00", "", (None, 0)),
    ],
)
def test_an_hour_that_is_there_twice(
    start: str, end: str, elapsed: str, expected: tuple[int | None, int | None]
) -> None:
    """Times in seconds from half past two, the first time that it was."""
    first, last = (f"2026-10-25T{text}" if text[0].isdigit() else text for text in (start, end))
    found = parse_span(first, last, elapsed)
    told = tuple(None if moment is None else moment - FIRST_HALF_PAST_TWO for moment in found)
    assert told == expected


@pytest.mark.usefixtures("in_oslo")
def test_not_begun_before_it_was_submitted() -> None:
    """Where the rest leaves it open."""
    times = ("2026-10-25T02:30:00", "2026-10-25T02:40:00", "600")
    assert parse_span(*times, FIRST_HALF_PAST_TWO + 1800)[0] == FIRST_HALF_PAST_TWO + 3600
    assert parse_span(*times, FIRST_HALF_PAST_TWO - 1800)[0] == FIRST_HALF_PAST_TWO


@pytest.mark.usefixtures("in_oslo")
def test_an_hour_that_is_not_there() -> None:
    """An hour of a job that ran while clocks were set forward did not pass."""
    assert parse_span("2026-03-29T01:30:00", "2026-03-29T03:30:00") == (1774744200.0, 1774747800.0)


def test_zones_and_seconds_leave_no_doubt() -> None:
    assert parse_span("2026-10-25T02:40:00+02:00", "2026-10-25T02:30:00+01:00") == (
        FIRST_HALF_PAST_TWO + 600,
        FIRST_HALF_PAST_TWO + 3600,
    )
    assert parse_span("1792888200", "1792888201", "5") == (1792888200.0, 1792888201.0)
