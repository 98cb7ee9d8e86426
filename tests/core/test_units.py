from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.units import (
    render_bytes,
    render_cores,
    render_exit,
    render_grams,
    render_joules,
    render_seconds,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (38 * 2**30, "38 GiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    """Three digits at most, in binary units."""
    assert render_bytes(count) == text


@pytest.mark.parametrize(
    ("cores", "text"),
    [(0.5, "0.5"), (8.0, "8"), (99_999.9, "100000"), (1e6, "1000000"), (1_234_567, "1234567")],
)
def test_cores(cores: float, text: str) -> None:
    assert render_cores(cores) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000123, "123 µs"),
        (0.05, "50 ms"),
        (1, "1 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (3599.6, "1 h"),
        (8040, "2 h 14 min"),
        (86_399, "1 d"),
        (10 * 86_400, "10 d"),
        (-5, "-5 s"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    """Two units at most, and never sixty of one."""
    assert render_seconds(seconds) == text


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0, "0 J"),
        (12.34, "12.3 J"),
        (999.6, "1.00 kJ"),
        (12_345, "12.3 kJ"),
        (12_276_000, "3.41 kWh"),
        (9e9, "2.50 MWh"),
    ],
)
def test_joules(joules: float, text: str) -> None:
    """Small amounts as physics has them, large ones as they are paid for."""
    assert render_joules(joules) == text


def test_grams() -> None:
    assert [render_grams(grams) for grams in (0.5, 1500, 2e6)] == ["0.50 g", "1.50 kg", "2 t"]


@given(st.floats(min_value=-1e15, max_value=1e15))
def test_any_number_has_a_short_text(number: float) -> None:
    """Whatever the number, the text fits a column of a table."""
    assert len(render_bytes(number)) <= 10
    assert len(render_seconds(number)) <= 20
    assert len(render_joules(number)) <= 16


@pytest.mark.parametrize(
    ("code", "number", "text"),
    [(1, None, "1"), (137, None, "SIGKILL"), (143, 15, "SIGTERM"), (255, None, "255"), (None, None, ""),
     (None, 9, "SIGKILL"), (2, 77, "signal 77"), (128, None, "128")],
)  # fmt: skip
def test_exit(code: int | None, number: int | None, text: str) -> None:
    """Signals by name, as the shell's 128 and more too."""
    assert render_exit(code, number) == text
