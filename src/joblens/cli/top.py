from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from joblens.analysis.live import Live
from joblens.cli import hub_client
from joblens.cli.table import room, write
from joblens.core.errors import JoblensError, UsageError, sentence
from joblens.reports.panel import Look
from joblens.reports.style import knows_blocks
from joblens.reports.top import BOTH, JOBS, NODES, SORTS, View, choose, render_screen, render_tables

if TYPE_CHECKING:
    from joblens.cli.screen import Screen

EXAMPLE = """example:
  joblens top
  joblens top --sort memory --filter alice
  joblens top --once --json c1:9477"""

WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_TIMEOUT = 30.0  # seconds to wait for two samples
_SORT_KEYS = {"c": "cpu", "m": "memory", "i": "io", "g": "gpu", "n": "name"}
_PANELS = {BOTH: NODES, NODES: JOBS, JOBS: BOTH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    hub_client.add_arguments(parser)
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="S", help="seconds between two updates (default 2)"
    )
    parser.add_argument("--sort", choices=SORTS, default="cpu", help="order of the rows (default cpu)")
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="only rows whose node, job or user contains it"
    )
    parser.add_argument(
        "--once", action="store_true", help="print two tables and exit; the default without a terminal"
    )
    parser.add_argument("--json", action="store_true", help="as --once, as JSON")


def run(options: argparse.Namespace) -> int:
    if not 0.1 <= options.interval <= 3600:
        raise UsageError(f"--interval is {options.interval:g}; it can be 0.1 to 3600 s")
    place, page = hub_client.ask_first(hub_client.find_places(options), "/now")
    live = Live()
    _take(live, place, page)
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if options.once or options.json or not terminal:
        return _print(live, place, options)
    return _watch(live, place, options)


def _take(live: Live, place: hub_client.Place, page: Any) -> None:
    try:
        live.take(page)
    except WRONG:
        raise hub_client.other_answer(place, "unexpected content of /now") from None


def _print(live: Live, place: hub_client.Place, options: argparse.Namespace) -> int:
    """Print as soon as there are rates, or after a timeout."""
    end = time.monotonic() + _TIMEOUT
    while live.nodes() and not live.has_rates and time.monotonic() < end:
        time.sleep(min(options.interval, 1.0))
        _take(live, place, hub_client.ask(place, "/now"))
    view = _first_view(live, place, options)
    if options.json:
        nodes, jobs = choose(view)
        found = {"nodes": [it._asdict() for it in nodes], "jobs": [it._asdict() for it in jobs]}
        write(json.dumps(found, indent=2) + "\n")
    else:
        write("\n".join(render_tables(view, room())) + "\n")
    return 0


def _first_view(live: Live, place: hub_client.Place, options: argparse.Namespace) -> View:
    name = f"{place.what.removeprefix('joblens').strip()} {place.name}".strip()
    return View(
        name,
        live.nodes(),
        live.jobs(),
        time.time(),
        options.interval,
        sort=options.sort,
        wanted=options.filter,
    )


def _watch(live: Live, place: hub_client.Place, options: argparse.Namespace) -> int:
    from joblens.cli.screen import Screen

    look = Look(colors="NO_COLOR" not in os.environ, blocks=knows_blocks(sys.stdout))
    with Screen() as screen:
        asking = _Asking(place, screen, options.interval)
        asking.start()
        view: View | None = _first_view(live, place, options)
        while view is not None:
            width, height = screen.size()
            screen.draw(render_screen(view, width, height, look))
            keys = screen.listen(60.0)
            view = _news(asking, live, press_all(view, keys, height))
            asking.interval = view.every if view else 0.0
    ended_by = screen.ended_by
    return 0 if ended_by in (0, signal.SIGINT) else 128 + ended_by


class _Asking(threading.Thread):
    """Polls the page in a thread, so that keys do not wait for a response."""

    def __init__(self, place: hub_client.Place, screen: Screen, interval: float) -> None:
        super().__init__(daemon=True)  # a pending request does not delay quitting
        self._place, self._screen, self.interval = place, screen, interval
        self._answers: list[Any] = []

    def run(self) -> None:
        while True:
            time.sleep(self.interval)
            try:
                answer: Any = hub_client.ask(self._place, "/now")
            except (JoblensError, OSError) as error:
                answer = error
            self._answers.append(answer)
            self._screen.wake()

    def news(self) -> list[Any]:
        found = self._answers[:]
        del self._answers[: len(found)]
        return found


def _news(asking: _Asking, live: Live, view: View | None) -> View | None:
    for answer in asking.news() if view else ():
        if isinstance(answer, Exception):
            view = view._replace(trouble=sentence(answer)) if view else None
            continue
        try:
            live.take(answer)
        except WRONG as error:
            view = view._replace(trouble=sentence(error)) if view else None
            continue
        if view and not view.paused:
            view = view._replace(nodes=live.nodes(), jobs=live.jobs(), moment=time.time(), trouble="")
    return view


def press_all(view: View, keys: list[str] | None, height: int) -> View | None:
    """Return the view after these keys, None to quit."""
    if keys is None:
        return None
    for key in keys:
        if view.typing:
            view = _type(view, key)
        elif view.help:
            view = view._replace(help=False)
        elif key in ("q", "Q"):
            return None
        else:
            view = _press(view, key, height)
    return view


def _type(view: View, key: str) -> View:
    if key == "enter":
        return view._replace(typing=False)
    if key == "escape":
        return view._replace(typing=False, wanted="")
    if key == "back":
        return view._replace(wanted=view.wanted[:-1])
    return view._replace(wanted=(view.wanted + key)[:60]) if len(key) == 1 else view


def _press(view: View, key: str, height: int) -> View:
    if key in _SORT_KEYS:
        again = view.sort == _SORT_KEYS[key]
        return view._replace(sort=_SORT_KEYS[key], reverse=again and not view.reverse, scroll=0)
    if key in ("+", "-"):
        return view._replace(every=_step(view.every, 1 if key == "+" else -1))
    changes = {
        "tab": view._replace(panel=_PANELS[view.panel], scroll=0),
        "r": view._replace(reverse=not view.reverse),
        "/": view._replace(typing=True, wanted="", scroll=0),
        "escape": view._replace(wanted=""),
        " ": view._replace(paused=not view.paused),
        "p": view._replace(paused=not view.paused),
        "?": view._replace(help=True),
        "h": view._replace(help=True),
        "home": view._replace(scroll=0),
        "up": view._replace(scroll=max(view.scroll - 1, 0)),
        "down": view._replace(scroll=_lower(view, view.scroll + 1)),
        "page up": view._replace(scroll=max(view.scroll - height // 2, 0)),
        "page down": view._replace(scroll=_lower(view, view.scroll + height // 2)),
    }
    return changes.get(key, view)


def _lower(view: View, scroll: int) -> int:
    return min(scroll, max(len(view.nodes), len(view.jobs)))


def _step(seconds: float, direction: int) -> float:
    if direction > 0:
        return next((it for it in _INTERVALS if it > seconds), _INTERVALS[-1])
    return next((it for it in reversed(_INTERVALS) if it < seconds), _INTERVALS[0])
