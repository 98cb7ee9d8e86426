"""`make fuzz`: every parser of outside data, each for some seconds, two at a time.

python -m fuzz [--seconds 60] [--targets NAME,NAME…] [--folder .fuzz] [--seed N] [--list]

A line per target: inputs, how many a second, and with atheris how much of joblens they reached, by which it
finds new ones. Without it (pip install atheris) inputs are mutations of recordings. Exit code 1 if any
failed: reproducers are in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

AT_ONCE = 2


def main() -> int:
    options = parse_options()
    if options.one:
        fuzz_one(options.one, options.seconds, Path(options.folder), options.seed)
        return 0
    from .targets import TARGETS

    names = options.targets.split(",") if options.targets else list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if options.list or unknown:
        print(*TARGETS, sep="\n")
        return 2 if unknown else 0
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    how = "atheris" if find_spec("atheris") else "mutations"
    print(f"{len(names)} targets, {options.seconds} s each, by {how}, seed {options.seed}")
    failures = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line, failed in pool.map(lambda name: run(name, options, folder), names):
            print(line, flush=True)
            failures += failed
    print(f"{failures} failures" + (f", kept in {folder}" if failures else ""))
    return 1 if failures else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--targets", default="")
    parser.add_argument("--folder", default=".fuzz")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def run(name: str, options: argparse.Namespace, folder: Path) -> tuple[str, int]:
    """In a process of its own: a crash of a library is a failure of this target only."""
    words = ["--one", name, "--seconds", str(options.seconds), "--folder", str(folder)]
    command = [sys.executable, "-m", "fuzz", *words, "--seed", str(options.seed)]
    log = folder / f"{name}.log"
    with log.open("w") as output:
        code = subprocess.run(
            command, cwd=Path(__file__).parent.parent, stdout=output, stderr=output, check=False
        ).returncode
    said = log.read_text(errors="replace")
    found = [json.loads(line) for line in _lines(folder / f"{name}.jsonl")]
    if code:
        found.append({"what": f"the process ended with {code}", "input": str(log)})
    line = f"{name:28} {_count(said)}" + (f"  {len(found)} FAILURES" if found else "")
    return "\n".join([line, *(f"    {it['what']}: {it['input']}" for it in found)]), len(found)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _count(said: str) -> str:
    """From what libFuzzer says, or from our own line."""
    runs = re.findall(r"(?m)^(?:#\d+\s+DONE|Done).*$", said)
    number = re.search(r"Done (\d+) runs in (\d+) second", said)
    covered = [int(it) for it in re.findall(r"cov: (\d+)", said)]
    if not runs or not number:
        return "no result"
    rate = int(number[1]) // max(int(number[2]), 1)
    new = f"  coverage {covered[0]} → {covered[-1]}" if covered else ""
    return f"{int(number[1]):>9} inputs  {rate:>7}/s{new}"


def fuzz_one(name: str, seconds: int, folder: Path, seed: int) -> None:
    if find_spec("atheris"):
        _with_atheris(name, seconds, folder, seed)
    else:
        _with_mutations(name, seconds, folder, seed)


def _prepare(name: str, folder: Path, seed: int) -> Any:
    from .engine import Book, grown, limit
    from .targets import TARGETS

    limit()
    book = Book(folder, TARGETS[name])
    for data in grown(book.target, seed):
        book.check(data)
    return book


def _with_mutations(name: str, seconds: int, folder: Path, seed: int) -> None:
    from .engine import mutations

    book = _prepare(name, folder, seed)
    begin, count = time.monotonic(), 0
    for data in mutations(book.target, seed):
        book.check(data)
        count += 1
        if time.monotonic() - begin > seconds:
            break
    print(f"Done {count} runs in {seconds} second(s)")


def _with_atheris(name: str, seconds: int, folder: Path, seed: int) -> None:
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["joblens"], enable_loader_override=False):
        from . import targets  # noqa: F401
    from .engine import LARGE, TOKENS

    book = _prepare(name, folder, seed)
    corpus, words = folder / "corpus" / name, folder / f"{name}.dict"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(book.target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    escaped = ("".join(f"\\x{byte:02x}" for byte in token[:60]) for token in TOKENS)
    words.write_text("".join(f'"{token}"\n' for token in escaped))
    atheris.Setup(
        [
            name, str(corpus), f"-dict={words}", f"-max_total_time={seconds}", f"-seed={seed}", "-timeout=60",
            "-rss_limit_mb=4096", f"-max_len={LARGE // 8}", "-len_control=0", "-print_final_stats=1",
        ],
        book.check,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("JOBLENS_CONFIG", os.devnull)
    sys.exit(main())
