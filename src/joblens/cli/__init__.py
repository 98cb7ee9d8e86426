"""The command line: one file per command, loaded only when it is called."""

from __future__ import annotations

import gc
import io
import os
import sys

from joblens.core.errors import JoblensError, OutsideError, sentence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

# Name and summary; the rest is in joblens.cli.<name>.
COMMANDS = (
    ("run", "run a command as a job and report what it used"),
    ("jobs", "list the stored jobs"),
    ("job", "report what a job used, and what to improve"),
    ("schema", "print the JSON Schema of `joblens job --json`"),
    ("start", "capture all processes of this shell or batch job from now on: code for the shell"),
    ("stop", "end that: code for the shell"),
    ("stage", "write the captured records of all nodes of a job to one archive"),
    ("submit", "store archives of captured jobs"),
    ("ingest", "store archives as they arrive in a folder, until it is stopped"),
    ("dump", "print the content of an archive"),
    ("check", "check that jobs can be captured and stored on this machine"),
    ("compare", "compare jobs: totals, operations and programs side by side"),
    ("outliers", "find jobs that are unlike the others, and where it comes from"),
    ("model", "keep what jobs of one kind usually use, and judge new ones by it"),
    ("series", "list the segments of an experiment in order, and those that are missing"),
    ("notebook", "start JupyterLab with notebooks about one job, a comparison and an outlier study"),
    ("tag", "change the tags of a stored, running or staged job"),
    ("annotate", "change the annotations of a stored, running or staged job"),
    ("delete", "delete stored jobs, with all samples and processes"),
    ("retire", "delete the jobs that ended before a date, or so many days ago"),
    ("mark", "mark a moment or a phase of the current job"),
    ("fom", "record a figure of merit of the current job"),
    (
        "db",
        "maintain the store, and a database with its job records",
    ),
    ("agent", "sample this node, serve metrics to Prometheus, send to a hub"),
    ("hub", "receive and store the samples of many nodes"),
    ("serve", "answer everybody's questions about their own jobs, over a Unix socket or HTTPS"),
    ("token", "create, list and revoke tokens with which you read from another machine"),
    ("slurm", "connect agents to Slurm: install the hooks, check a node"),
    ("ls", "list sampled sets and running jobs, of a hub's nodes or of one agent"),
    ("top", "show nodes and jobs live"),
    ("up", "run agent, hub and read service on this machine, with a store"),
    ("usermode", "sample every host of the current job, without root and without a server"),
    ("import", "import data of another monitoring system into the store"),
    ("config", "write a settings file with every default, or show the effective settings"),
    ("prometheus-config", "print a Prometheus configuration that scrapes agents"),
    ("record", "copy the files that collectors read into a folder, for tests and bug reports"),
    ("completion", "print the completion script of a shell"),
    ("man", "print the manual page"),
)
# These need no clean-up at exit but that of their connections to DuckDB.
_QUICK = (
    "run", "jobs", "job", "mark", "fom", "submit", "compare", "outliers", "model", "series", "tag",
    "annotate", "delete", "import",
)  # fmt: skip
# Here OpenBLAS, which NumPy loads, needs no thread for each core: to start these takes as long as the rest.
# Other commands start programs of the user, which would inherit the variable.
_ONE_THREAD = (
    "jobs", "job", "submit", "ingest", "compare", "outliers", "model", "series", "delete", "retire", "db",
    "hub", "import",
)  # fmt: skip
_ON_NODES = ("agent", "slurm", "config", "mark", "fom", "prometheus-config", "record")  # Python 3.9
_QUICK_GARBAGE = 100_000  # new objects between two garbage collections


def entry() -> int:
    """Run the program `joblens` and return its exit code. Interactive commands exit without returning."""
    if sys.stdout is None:  # closed by the parent
        sys.stdout = io.TextIOWrapper(io.BytesIO())  # not a file, which would get descriptor 1
    quick = sys.argv[1:2] != [] and sys.argv[1] in _QUICK
    if quick:  # nothing they load becomes garbage, and collecting it takes a tenth of their time
        gc.set_threshold(_QUICK_GARBAGE)
    try:
        code = main()
    except SystemExit as stop:  # of argparse
        code = stop.code if isinstance(stop.code, int) else 0
    code = _flush(code)
    if quick:
        if "joblens.store.lake.lake" in sys.modules:  # which an agent does not have
            sys.modules["joblens.store.lake.lake"].close_all()
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(code)  # skips the destruction of hundreds of modules, which takes time
    return code


def _flush(code: int) -> int:
    """Flush stdout here: at exit, Python would report a failure with an exit code of its own."""
    try:
        sys.stdout.flush()
        return code
    except (OSError, ValueError) as error:
        from contextlib import suppress

        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return code or 141
        if not code:
            print(f"joblens: {sentence(error)}", file=sys.stderr)
        return code or OutsideError.exit_code


def main(arguments: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    called = next((word for word in words if not word.startswith("-")), "")
    if called and called not in _ON_NODES and sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"joblens: joblens {called} needs Python 3.11 or newer, not {version}", file=sys.stderr)
        return 2
    if called in _ONE_THREAD:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return _run(words, called)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (JoblensError, OSError) as error:
        print(f"joblens: {sentence(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, JoblensError) else 3
    except KeyboardInterrupt:
        return 130


def _run(words: List[str], called: str) -> int:
    if words[:1] == ["run"]:
        # By name, as all commands, but without importlib, which takes as long to load as a sample.
        code: Optional[int] = __import__("joblens.cli.run", fromlist=["run"]).run_quickly(words[1:])
        if code is not None:
            return code
    from joblens.cli.parser import build_parser

    # The list of all commands is only needed for `joblens --help`.
    listed = [entry for entry in COMMANDS if words[:1] == [entry[0]]]
    parser = build_parser([called], listed or COMMANDS)
    options = parser.parse_args(words)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    return int(options.run(options))
