"""Process data of an archive as columns: CSV of papiex (v1), or TSV with one line per process (v2).

v1: a header line, commas, `\\` before a comma or a backslash. A process is one full row, and a row for each
further thread in which the columns of the process are empty.
v2: the names are in another file. A line begins with `{…}`, all metrics of one thread after those of another.
Columns are found by their names, however many there are.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from joblens.core.errors import MalformedError

if TYPE_CHECKING:
    import numpy

    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

TEXTS = ("tags", "hostname", "exename", "path", "args")
NUMBERS = (
    "pid", "ppid", "pgid", "sid", "generation", "exitcode", "exitsignal", "mpirank", "mpinumranks", "start",
    "end",
)  # fmt: skip
_PER_THREAD = ("tid", "start", "end")
_NEEDED = ("exename", "pid", "numtids", "start", "end")
_OF_PROCESS = frozenset((*NUMBERS, "numtids")) - {"start", "end"}
_NOT_METRICS = frozenset((*TEXTS, *NUMBERS, *_PER_THREAD, "numtids"))
_MOST_COLUMNS = 4000
_MOST_THREADS = 1 << 20
_CHUNK_ROWS = 10_000
_CHUNK_LETTERS = 32 << 20
_LONGEST_LINE = 16 << 20
_PIECE = 1 << 20
_ARRAY = re.compile(r"\{[-0-9, ]*\}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_BACKSLASH, _COMMA = "\0", "\1"  # in place of escaped ones, until a line is split; no text has them

Broken = Callable[[str, str], None]  # where it is, and what is wrong


class Chunk(NamedTuple):
    """Some processes of a job. Arrays are per process, or per thread, those of a process together."""

    texts: dict[str, list[str]]
    numbers: dict[str, Numbers]  # per process; those that the archive has
    first: Numbers  # the place of its first thread
    threads: Numbers  # how many threads it has
    said: Numbers  # how many it says that it has
    metrics: dict[str, Numbers]  # per thread
    thread_numbers: dict[str, Numbers]  # tid, start and end per thread; not in v2


def read_chunks(
    files: Iterator[tuple[str, str, BinaryIO]], headers: Mapping[str, bytes], broken: Broken
) -> Iterator[Chunk]:
    """Yield the processes of all files; those that cannot be read go to `broken`."""
    groups = _Groups(broken)
    for name, host, file in files:
        lines = _Lines(name, file, broken)
        first = next(lines, "")
        tags = ""
        while first.startswith("#") or (first.isspace() and lines.more):
            tags = tags or first[1:].strip()
            first = next(lines, "")
        try:
            if first.startswith("{"):
                yield from groups.take_tsv(name, _parse_head(name, host, headers), chain([first], lines))
            elif first:
                yield from groups.take_csv(name, host, _parse_names(name, first), lines, tags)
        except MalformedError as error:
            broken(name, error.what)
    yield from groups.flush()


def _parse_names(name: str, line: str) -> tuple[str, ...]:
    """Raises MalformedError for what is no header."""
    names = tuple(cell.strip() for cell in line.split(","))
    return _checked(name, tuple("end" if cell == "finish" else cell for cell in names))


def _parse_head(
    name: str, host: str, headers: Mapping[str, bytes]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the metrics and of the columns after them. Raises MalformedError."""
    data = headers.get(host)
    if data is None:
        raise MalformedError(name, "there is no header file for it")
    text = data.decode("utf-8", "replace").strip("\r\n")
    metrics, *names = (cell.strip() for cell in text.split("\t"))
    if not metrics.startswith("{") or not metrics.endswith("}"):
        raise MalformedError(name, "its header file does not begin with the names of metrics")
    found = tuple(cell.strip() for cell in metrics[1:-1].split(","))
    columns = tuple("end" if cell == "finish" else cell for cell in names)
    _checked(name, (*found, *columns))
    return found, columns


def _checked(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > _MOST_COLUMNS:
        raise MalformedError(name, f"{len(names):,} columns; at most {_MOST_COLUMNS:,} are read")
    missing = [it for it in _NEEDED if it not in names]
    if missing:
        raise MalformedError(name, f"no header with the column {missing[0]}")
    if len(set(names)) < len(names):
        raise MalformedError(name, "two columns have the same name")
    return names


class _Lines:
    """Lines of bounded length, decoded many at a time. Longer ones are reported and left out."""

    def __init__(self, name: str, file: BinaryIO, broken: Broken) -> None:
        self.name, self.file, self.broken = name, file, broken
        self.more = True
        self._lines: Iterator[str] = iter(())
        self._rest = b""
        self._is_skipping = False  # the rest of a line that is too long

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        for line in self._lines:
            return line
        while self.more:
            self._lines = iter(self._read())
            for line in self._lines:
                return line
        raise StopIteration

    def _read(self) -> list[str]:
        data = self.file.read(_PIECE)
        self.more = bool(data)
        if self._is_skipping:
            _, newline, data = data.partition(b"\n")
            self._is_skipping = self.more and not newline
            if self._is_skipping:
                return []
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        if not self.more:
            whole, rest = self._rest, b""
        elif not newline:
            whole, rest = b"", self._rest + data
        if len(rest) > _LONGEST_LINE:
            self.broken(self.name, "a line is too long")
            rest, self._is_skipping = b"", True
        self._rest = rest
        text = whole.decode("utf-8", "replace")
        for sign in (_BACKSLASH, _COMMA):
            if sign in text:
                text = text.replace(sign, "\N{REPLACEMENT CHARACTER}")
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", " ")
        return text.split("\n") if whole else []


class _Layout:
    """Where the columns of a CSV file are. Usually all texts come first, and then all numbers."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.width = len(names)
        self.texts = [name for name in names if name in TEXTS]
        self.numbers = [name for name in names if name not in TEXTS]
        self._order = None
        if names[: len(self.texts)] != tuple(self.texts) or self.numbers[0] not in _OF_PROCESS:
            self.numbers.sort(key=lambda name: name != "numtids")  # which the row of a thread does not have
            self._order = [names.index(name) for name in (*self.texts, *self.numbers)]
        self.of_threads = [at for at, name in enumerate(self.numbers) if name not in _OF_PROCESS]

    def split(self, line: str) -> list[str]:
        """Return its texts, and all numbers as one text."""
        count = len(self.texts)
        if self._order is None:
            return line.split(",", count)
        cells = line.split(",")
        if len(cells) != self.width:
            return cells
        cells = [cells[at] for at in self._order]
        return [*cells[:count], ",".join(cells[count:])]

    def places(self, texts: Mapping[str, str]) -> list[tuple[int, str]]:
        """Return where these texts belong, without empty ones."""
        return [(self.texts.index(name), it) for name, it in texts.items() if name in self.texts and it]

    def is_whole(self, cells: list[str]) -> bool:
        return len(cells) == len(self.texts) + 1 and cells[-1].count(",") == len(self.numbers) - 1


class _Rows:
    """Rows with the same columns: of processes, and of their further threads."""

    def __init__(self, layout: _Layout) -> None:
        self.layout = layout
        self.texts: list[list[str]] = []
        self.numbers: list[str] = []  # of processes
        self.threads: list[str] = []  # of further threads, without the columns of the process
        self.first: list[int] = []  # of which row is that of a process
        self.count = self.letters = 0
        self.where: list[str] = []  # the file of each process

    @property
    def is_full(self) -> bool:
        return self.count >= _CHUNK_ROWS or self.letters >= _CHUNK_LETTERS

    def add_process(self, name: str, texts: list[str], numbers: str) -> None:
        self.first.append(self.count)
        self.texts.append(texts)
        self.numbers.append(numbers)
        self.where.append(name)
        self.count += 1
        self.letters += len(numbers) + sum(map(len, texts))

    def add_thread(self, numbers: str) -> bool:
        """Return False if the process, which is in one chunk, has too many."""
        if self.count - self.first[-1] >= _MOST_THREADS or self.letters >= 4 * _CHUNK_LETTERS:
            return False
        cells = numbers.split(",")
        self.threads.append(",".join([cells[at] for at in self.layout.of_threads]))
        self.count += 1
        self.letters += len(numbers)
        return True

    def chunk(self) -> Chunk:
        """Raises ValueError if a cell is no number of 64 bits."""
        import numpy

        layout, starts = self.layout, numpy.array(self.first, dtype=numpy.int64)
        own = _matrix(self.numbers, len(layout.numbers))
        further = _matrix(self.threads, len(layout.of_threads))
        is_further = numpy.ones(self.count, dtype=bool)
        is_further[starts] = False

        def of_threads(place: int) -> Numbers:
            at = layout.of_threads[place]
            if not self.threads:
                return numpy.ascontiguousarray(own[:, at])
            found = numpy.empty(self.count, dtype=numpy.int64)
            found[starts], found[is_further] = own[:, at], further[:, place]
            return found

        columns = dict(zip(layout.numbers, own.T))
        per_thread = {layout.numbers[at]: of_threads(place) for place, at in enumerate(layout.of_threads)}
        return Chunk(
            {name: list(cells) for name, cells in zip(layout.texts, zip(*self.texts))},
            {name: numpy.ascontiguousarray(columns[name]) for name in NUMBERS if name in columns},
            starts,
            numpy.diff(starts, append=self.count),
            columns["numtids"],
            {name: values for name, values in per_thread.items() if name not in _NOT_METRICS},
            {name: values for name, values in per_thread.items() if name in _PER_THREAD},
        )

    def without_broken(self, broken: Broken) -> _Rows:
        """Return the processes all of whose numbers are numbers, as are those of their threads."""
        sound, threads = _Rows(self.layout), iter(self.threads)
        for number, begin in enumerate(self.first):
            following = self.first[number + 1] if number + 1 < len(self.first) else self.count
            own, mine = self.numbers[number], [next(threads) for _ in range(begin + 1, following)]
            wrong = next(
                (it for cells in (own, *mine) for it in cells.split(",") if not _is_number(it)), None
            )
            if wrong is None:
                sound.add_process(self.where[number], self.texts[number], own)
                sound.threads += mine
                sound.count += len(mine)
            else:
                pid = own.split(",")[self.layout.numbers.index("pid")]
                broken(self.where[number], f"process {pid:.20}: {wrong!r:.40} is not a number")
        return sound


def _matrix(rows: list[str], width: int) -> Numbers:
    import numpy

    found: Numbers = _numbers(rows, width * len(rows)) if rows else numpy.empty(0, dtype=numpy.int64)
    return found.reshape(len(rows), width)


class _Groups:
    """Collects rows until there are enough of them for a chunk."""

    def __init__(self, broken: Broken) -> None:
        self.broken = broken
        self._names: tuple[str, ...] = ()
        self._rows: _Rows | None = None

    def flush(self) -> Iterator[Chunk]:
        rows = self._rows
        if rows is None or not rows.count:
            return
        self._rows = _Rows(rows.layout)
        try:
            yield rows.chunk()
        except ValueError:
            sound = rows.without_broken(self.broken)
            if sound.count:
                yield sound.chunk()

    def take_csv(
        self, name: str, host: str, names: tuple[str, ...], lines: Iterator[str], tags: str
    ) -> Iterator[Chunk]:
        if names != self._names or self._rows is None:
            yield from self.flush()
            self._names, self._rows = names, _Rows(_Layout(names))
        rows = self._rows
        layout, complete = rows.layout, False
        fill = layout.places({"hostname": host, "tags": tags})
        for number, line in _unescaped(lines):
            *texts, numbers = layout.split(line)
            if not layout.is_whole([*texts, numbers]):
                if line and not line.startswith("#") and line != ",".join(names):
                    complete = False  # threads that follow have lost their process
                    cells = line.count(",") + 1
                    self.broken(f"{name}:{number}", _wrong_width(cells, layout.width))
            elif not numbers.startswith(","):
                complete = True
                if rows.is_full:
                    yield from self.flush()
                    rows = self._rows
                if _BACKSLASH in line or _COMMA in line:
                    texts = [it.replace(_COMMA, ",").replace(_BACKSLASH, "\\") for it in texts]
                rows.add_process(name, _filled(texts, fill), numbers)
            elif not complete:
                self.broken(f"{name}:{number}", "a thread without its process")
            elif not rows.add_thread(numbers):
                complete = False
                self.broken(f"{name}:{number}", "too many threads of one process")

    def take_tsv(
        self, name: str, head: tuple[tuple[str, ...], tuple[str, ...]], lines: Iterator[str]
    ) -> Iterator[Chunk]:
        yield from self.flush()
        metrics, names = head
        records: list[list[str]] = []
        letters = 0
        for line in self._whole_lines(name, len(names), lines):
            cells = line.split("\t")
            if len(records) >= _CHUNK_ROWS or letters >= _CHUNK_LETTERS:
                yield from _make_tsv_chunk(name, metrics, names, records, self.broken)
                records, letters = [], 0
            cells[len(names) :] = ["\t".join(cells[len(names) :])]  # a tab among the arguments
            records.append(cells)
            letters += len(line)
        yield from _make_tsv_chunk(name, metrics, names, records, self.broken)

    def _whole_lines(self, name: str, width: int, lines: Iterator[str]) -> Iterator[str]:
        """Yield a text for each process. There can be newlines in its last column, the arguments."""
        parts: list[str] = []
        letters = 0
        for line in lines:
            tabs = line.count("\t")
            is_new = line.startswith("{")
            if is_new and tabs >= width:
                if parts:
                    yield "\n".join(parts)
                parts, letters = [line], len(line)
            elif parts and not is_new and tabs < width - 1 and letters < _LONGEST_LINE:
                parts.append(line)
                letters += len(line) + 1
            elif line:
                self.broken(name, _wrong_width(tabs + 1, width + 1))
        if parts:
            yield "\n".join(parts)


def _unescaped(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield numbered lines after the header, with signs in place of escaped characters.

    A line that ends in a backslash goes on in the next one.
    """
    before = ""
    for number, raw in enumerate(lines, 2):
        line = raw
        if "\\" in raw:
            line = raw.replace("\\\\", _BACKSLASH).replace("\\,", _COMMA)
            if line.endswith("\\") and len(before) < _LONGEST_LINE:
                before += line[:-1] + "\n"
                continue
            line = _ESCAPED.sub(r"\1", line) if "\\" in line else line
        yield number, before + line if before else line
        before = ""
    if before:
        yield number, before


def _filled(texts: list[str], fill: list[tuple[int, str]]) -> list[str]:
    for place, text in fill:
        texts[place] = texts[place] or text
    return texts


def _wrong_width(cells: int, width: int) -> str:
    return f"a row of {cells} cells instead of {width}"


def _numbers(cells: Sequence[str], count: int = 0) -> Numbers:
    """Parse cells, each with one number or with several, so many together. Raises ValueError."""
    import numpy

    text = ",".join(cells)
    count = count or len(cells)
    if text.count(",") + 1 != count:
        raise ValueError("other numbers than columns")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # what NumPy says of text that is no number
        try:
            found: Numbers = numpy.fromstring(text, dtype=numpy.int64, sep=",")
        except DeprecationWarning:
            raise ValueError("not a number") from None
    most = numpy.iinfo(numpy.int64)
    if (
        len(found) != count or int(found.max()) == most.max or int(found.min()) == most.min
    ):  # too large for 64 bits
        raise ValueError("not a number of 64 bits")
    return found


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None and abs(int(cell)) < (1 << 63) - 1


def _make_tsv_chunk(
    name: str, metrics: tuple[str, ...], names: tuple[str, ...], records: list[list[str]], broken: Broken
) -> Iterator[Chunk]:
    if not records:
        return
    try:
        yield _tsv_chunk(metrics, names, records)
    except ValueError:
        good = [record for record in records if not _what_is_wrong(name, metrics, names, record, broken)]
        if good:
            yield _tsv_chunk(metrics, names, good)


def _tsv_chunk(metrics: tuple[str, ...], names: tuple[str, ...], records: list[list[str]]) -> Chunk:
    """Raises ValueError."""
    import numpy

    arrays, *rest = zip(*records)
    columns = dict(zip(names, rest))
    threads = _numbers(columns["numtids"])
    if threads.min() < 1 or threads.max() > _MOST_THREADS or any(a[0] != "{" or a[-1] != "}" for a in arrays):
        raise ValueError
    inner = [array[1:-1] for array in arrays]
    if [text.count(",") + 1 for text in inner] != (threads * len(metrics)).tolist():
        raise ValueError
    values = _numbers(inner, int(threads.sum()) * len(metrics)).reshape(-1, len(metrics))
    return Chunk(
        {it: list(columns[it]) for it in TEXTS if it in columns},
        {it: _numbers(columns[it]) for it in NUMBERS if it in columns},
        numpy.cumsum(threads) - threads,
        threads,
        threads,
        {
            it: numpy.ascontiguousarray(values[:, at])
            for at, it in enumerate(metrics)
            if it not in _NOT_METRICS
        },
        {},
    )


def _what_is_wrong(
    name: str, metrics: tuple[str, ...], names: tuple[str, ...], record: list[str], broken: Broken
) -> bool:
    cells = dict(zip(names, record[1:]))
    wrong = [it for it in (*NUMBERS, "numtids") if it in cells and not _is_number(cells[it])]
    if wrong:
        broken(name, f"{wrong[0]} is not a number: {cells[wrong[0]]!r:.40}")
        return True
    values = record[0][1:-1].split(",") if _ARRAY.fullmatch(record[0]) else []
    if not 1 <= int(cells["numtids"]) <= _MOST_THREADS or len(values) != int(cells["numtids"]) * len(metrics):
        broken(name, f"{len(values)} values of {cells['numtids']} threads with {len(metrics)} metrics each")
        return True
    if not all(_is_number(value.strip()) for value in values):
        broken(name, "a metric is not a number")
        return True
    return False
