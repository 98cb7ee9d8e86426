from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from joblens.cli.table import progress, tell, write
from joblens.errors import JoblensError

if TYPE_CHECKING:
    from joblens.api import Store
    from joblens.schedulers.facts import JobFacts

EXAMPLE = """example:
  joblens job last
  joblens job r1nfmafbw90t4 --json
  joblens job 4200_7
  joblens job 4242@cluster2
  joblens job 4242 --store http://127.0.0.1:9090
  joblens job last --between "time steps"
  joblens job last --from +10m --to 13:02:30"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID|last", help="of the job, also ID@CLUSTER, or the beginning of it")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--between", metavar="MARK", help="only while this mark was set (MARK#2: the second)")
    parser.add_argument("--step", metavar="S", help="only while this step of it ran")
    parser.add_argument(
        "--from", dest="first", metavar="T", help="only from then on: 13:02, +10m after the start"
    )
    parser.add_argument("--to", dest="last", metavar="T", help="and until then")
    parser.add_argument(
        "--store", metavar="WHERE",
        help="from a server that speaks PromQL: its URL, its data folder, or tsdb, the one of the settings",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from joblens.analysis.part import find_part, summarise_part
    from joblens.api import Store
    from joblens.cli.elsewhere import CONFIGURED, configured, report_elsewhere
    from joblens.jobs.live import find_live

    problems: list[str] = []
    session = _settle(options.id)
    with Store(progress=progress("days of records")) as store:
        live = session or find_live(store.home, options.id, problems)
        try:
            if options.store is None:
                record = _find(store, options.id, live)
            else:
                record = report_elsewhere(options, store, live, options.store)
        except LookupError as error:
            waits = f"job {live.shown_id} waits: {live.state} {live.reason}".rstrip() if live else ""
            if waits or options.id == "last" or not configured():
                raise JoblensError(waits or str(error.args[0])) from None
            options.store = CONFIGURED
            record = report_elsewhere(options, store, None, CONFIGURED)
        finally:
            tell(store.problems + problems)
        part = None
        if options.store is None:
            part = find_part(record, options.between, options.step, options.first, options.last)
        if part is not None:
            record = summarise_part(record, store.reader(record), part)
        tell_others(store.same_id(options.id) if live is None else [])
    if options.json:
        write(json.dumps(record, indent=2) + "\n")
    else:
        from joblens.reports.text import Style, render_report

        write(render_report(record, Style.on(sys.stdout.isatty())))
    return 0


def _settle(name: str) -> JobFacts | None:
    """Of a job in user mode: what is known of it now, if it runs; if it has ended, it gets its record."""
    from joblens.store.home import find_home

    home = find_home()
    if not (home.path / "usermode").is_dir():
        return None
    from joblens.usermode.finish import settle

    return settle(home, name, lambda words: print(f"joblens: {words}", file=sys.stderr))


def _find(store: Store, id: str, live: JobFacts | None) -> dict[str, Any]:
    """LookupError if there is none. Of one that has just ended the record may be there already."""
    from joblens.jobs.live import runs, summarise_live

    if live is None or not runs(live):
        return store.job(id)
    try:
        record = store.job(id) if live.end is not None else {}
    except LookupError:
        record = {}
    if record and record["job"]["start"] >= (live.start or 0.0):
        return record
    return summarise_live(store.home, live)


def tell_others(found: list[tuple[str, str, float]]) -> None:
    """Ids come round, jobs are put back into the queue, and clusters count on their own."""
    if len(found) < 2:
        return
    when = [time.strftime("%Y-%m-%d %H:%M", time.localtime(start)) for _, _, start in found]
    others = ", ".join(f"{cluster} {moment}" for (cluster, _, _), moment in zip(found[1:4], when[1:]))
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    name = f"job {found[0][1]} of {found[0][0]}, begun {when[0]}"
    print(f"joblens: the newest is shown, {name}; others have that id: {others}{more}", file=sys.stderr)
