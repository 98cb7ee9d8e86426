"""Numbers as text for people."""

from __future__ import annotations

_CLOCK = (
    (3600, 60, 1, ("min", "s")),
    (86_400, 3600, 60, ("h", "min")),
    (float("inf"), 86_400, 3600, ("d", "h")),
)
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def render_bytes(count: float) -> str:
    """`38 GiB`: at most three digits, binary units."""
    size = float(count)
    for unit in _BYTES:
        if abs(size) < 999.5 or unit == _BYTES[-1]:
            break
        size /= 1024
    return f"{_three(size)} {unit}"


def render_cores(cores: float) -> str:
    """`8`, `1.5`; without decimals above 99,999, in exponent form for implausible counts."""
    return f"{cores:.0f}" if 99_999.5 <= abs(cores) < 1e9 else f"{cores:g}"


def render_load(cores: float) -> str:
    """Cores in use: `1.5`, and `0.03` rather than 0.0, which would mean none."""
    return f"{cores:.1f}" if cores >= 0.095 or cores == 0 else f"{cores:.1g}"


def render_seconds(seconds: float) -> str:
    """`2 h 14 min`: at most two units, the smaller one omitted if it is zero."""
    if seconds == float("inf"):
        return "forever"
    if seconds < 0:
        return "-" + render_seconds(-seconds)
    if seconds == 0:  # from Slurm, which counts whole seconds
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (0.9995, 1e3, "ms"), (59.95, 1.0, "s")):
        if seconds < limit:
            return f"{_three(seconds * factor)} {unit}"
    large, small, names = next(clock[1:] for clock in _CLOCK if _rounded(seconds, clock[2]) < clock[0])
    whole, rest = divmod(_rounded(seconds, small), large)
    return f"{whole} {names[0]}" + (f" {rest // small} {names[1]}" if rest else "")


def render_joules(joules: float) -> str:
    """`12.3 kJ`, and above a megajoule in the unit of electricity bills: `3.41 kWh`."""
    if abs(joules) < 999.5:
        return f"{_three(joules)} J"
    if abs(joules) < 999_500:
        return f"{_three(joules / 1000)} kJ"
    hours = joules / 3_600_000
    return f"{_three(hours)} kWh" if abs(hours) < 999.5 else f"{_three(hours / 1000)} MWh"


def render_grams(grams: float) -> str:
    for factor, unit in ((1.0, "g"), (1e3, "kg")):
        if abs(grams) < 999.5 * factor:
            return f"{_three(grams / factor)} {unit}"
    return f"{_three(grams / 1e6)} t"


def _rounded(seconds: float, unit: int) -> int:
    return round(seconds / unit) * unit


def _three(number: float) -> str:
    """Three significant digits: 1.23, 12.3, 123."""
    if number == int(number):
        return str(int(number))
    size = abs(number)
    return f"{number:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def render_signal(number: int) -> str:
    """`SIGKILL`, or `signal 77` where it has no name."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def render_exit(code: int | None, number: int | None = None) -> str:
    """`SIGKILL`, also for 137, which is how a shell reports it; else the exit code."""
    if code is None and not number:
        return ""
    named = render_signal(number or (code or 0) - 128)
    return named if number or named.startswith("SIG") else f"{code}"
