from __future__ import annotations

import argparse
import json
import sys
from http.client import HTTPConnection, HTTPException
from typing import Any

from joblens.cli.table import plain, render_table
from joblens.config import Settings, split_address
from joblens.errors import ServerError, UsageError, sentence
from joblens.units import render_bytes, render_seconds

EXAMPLE = """example:
  joblens ls
  joblens ls --json 127.0.0.1:9477"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        nargs="?",
        default=Settings().listen,
        metavar="HOST:PORT",
        help="of the agent (default %(default)s)",
    )
    parser.add_argument("--token-file", metavar="F", help="the token that the agent asks for")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    found = fetch(options.address, options.token_file)
    if options.json:
        json.dump(found, sys.stdout, indent=2)
        print()
    else:
        try:
            lines = render(found)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServerError(f"{options.address} answers otherwise than a joblens agent") from error
        print("\n".join(lines))
    return 0


def fetch(address: str, token_file: str | None) -> dict[str, Any]:
    headers = {}
    if token_file:
        with open(token_file, encoding="latin-1") as file:  # as it stands in a header
            headers["Authorization"] = f"Bearer {file.read().strip()}"
    connection = HTTPConnection(*split_address(address, name="the address"), timeout=10)
    try:
        connection.request("GET", "/sets", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise UsageError(f"{address} answers: {body.decode('utf-8', 'replace').strip()}")
        found = json.loads(body)
        return {"node": found["node"], "sets": list(found["sets"]), "jobs": list(found["jobs"])}
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"no joblens agent answers at {address}: {sentence(error)}") from None
    finally:
        connection.close()


def render(found: dict[str, Any]) -> list[str]:
    sets = [
        (
            item["set"],
            str(item["rows"]),
            str(item["values"]),
            render_seconds(item["interval_seconds"]),
            "-" if item["age_seconds"] is None else render_seconds(item["age_seconds"]),
            render_seconds(item["duration_seconds"]),
            item["state"] + (f": {item['error']}" if item["error"] else ""),
        )
        for item in found["sets"]
    ]
    lines = [f"node {plain(found['node'])}", ""]
    lines += render_table(("set", "rows", "values", "every", "age", "took", "state"), sets, left=(0, 6))
    lines.append("")
    if not found["jobs"]:
        return [*lines, "no job is running here"]
    jobs = [
        (
            job["jobid"],
            job["user"] or "?",
            job["source"],
            "-" if job["cpu_seconds"] is None else render_seconds(job["cpu_seconds"]),
            "-" if job["memory_bytes"] is None else render_bytes(job["memory_bytes"]),
            str(job["processes"]),
        )
        for job in found["jobs"]
    ]
    return lines + render_table(
        ("job", "user", "known from", "CPU time", "memory", "processes"), jobs, left=(0, 1, 2)
    )
