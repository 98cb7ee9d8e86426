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
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from joblens.core import counter_file
from joblens.core.errors import MalformedError
from joblens.core.secrets import HINTS_IN_C

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
_CHUNK_ROWS = 3072  # held in memory
_OF_SMALL = 4  # times as many of an archive that is in memory itself: each chunk is a file, which takes time
_CHUNK_LETTERS = 32 << 20
_LONGEST_LINE = 16 << 20
_PIECE = 1 << 20
_ARRAY = re.compile(r"\{[-0-9, ]*\}", re.ASCII)
_NUMBER = re.compile(r" *-?0*([0-9]{1,19}) *", re.ASCII)
_OF_NUMBERS = b"0123456789-, "
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
    suspects: Numbers  # processes whose command line may have a secret


def code_texts(cells: Sequence[str]) -> tuple[list[str], Numbers]:
    """Return the different texts, and the place of each cell among them."""
    import numpy

    places = {text: place for place, text in enumerate(dict.fromkeys(cells))}
    return list(places), numpy.fromiter(map(places.__getitem__, cells), numpy.int64, len(cells))


def read_chunks(
    files: Iterator[tuple[str, str, BinaryIO]],
    headers: Mapping[str, bytes],
    broken: Broken,
    is_small: bool = False,
) -> Iterator[Chunk]:
    """Yield the processes of all files; those that cannot be read go to `broken`."""
    groups = _Groups(broken, _CHUNK_ROWS * (_OF_SMALL if is_small else 1))
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
    """Lines of bounded length, decoded. Longer ones are reported and left out."""

    def __init__(self, name: str, file: BinaryIO, broken: Broken) -> None:
        self.name, self.file, self.broken = name, file, broken
        self.more = True
        self.data, self.at = b"", 0  # whole lines, and where the next one begins
        self.number = 0  # of the last line
        self._rest = b""
        self._is_skipping = False  # the rest of a line that is too long

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if not self.fill():
            raise StopIteration
        end = self.data.index(b"\n", self.at)
        line = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        self.number += 1
        for sign in (_BACKSLASH, _COMMA):
            if sign in line:
                line = line.replace(sign, "\N{REPLACEMENT CHARACTER}")
        return line.removesuffix("\r").replace("\r", " ")

    def fill(self) -> bool:
        """Read on if all lines were taken. Return whether there are any."""
        while self.at >= len(self.data) and self.more:
            self.data, self.at = self._read(), 0
        return self.at < len(self.data)

    def _read(self) -> bytes:
        data = self.file.read(_PIECE)
        self.more = bool(data)
        if self._is_skipping:
            _, newline, data = data.partition(b"\n")
            self._is_skipping = self.more and not newline
            if self._is_skipping:
                return b""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        if not self.more and rest:
            whole, rest = data + b"\n", b""
        if len(rest) > _LONGEST_LINE:
            self.broken(self.name, "a line is too long")
            rest, self._is_skipping = b"", True
        self._rest = rest
        return whole


class _Layout:
    """Where the columns of a CSV file are. Usually all texts come first, and then all numbers."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.width, self.head = len(names), ",".join(names)
        self.texts = [name for name in names if name in TEXTS]
        self.numbers = [name for name in names if name not in TEXTS]
        self._order = None
        if names[: len(self.texts)] != tuple(self.texts) or self.numbers[0] not in _OF_PROCESS:
            self.numbers.sort(key=lambda name: name != "numtids")  # which the row of a thread does not have
            self._order = [names.index(name) for name in (*self.texts, *self.numbers)]
        self.of_threads = [at for at, name in enumerate(self.numbers) if name not in _OF_PROCESS]
        # As parse_rows of the C library takes them.
        kinds = (b"t" if it in TEXTS else b"p" if it in _OF_PROCESS else b"n" for it in names)
        self.kinds = b"".join(kinds) if self._order is None else b""

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

    def is_process(self, cells: list[str]) -> bool:
        return self.is_whole(cells) and not cells[-1].startswith(",")


class _Block(NamedTuple):
    """Processes with their further threads."""

    texts: list[list[str]]  # by column
    own: Numbers  # a row for each process
    further: Numbers  # a row for each further thread, without the columns of the process
    first: Numbers  # of which row is that of a process
    suspects: Numbers  # processes whose texts may have a secret


class _Rows:
    """Rows with the same columns: of processes, and of their further threads."""

    def __init__(self, layout: _Layout, broken: Broken, most: int) -> None:
        self.layout, self.broken, self.most = layout, broken, most
        self.blocks: list[_Block] = []
        self.sealed = 0  # rows of these
        # Of the rows after them:
        self.texts: list[list[str]] = []
        self.numbers: list[str] = []  # of processes
        self.threads: list[str] = []  # of further threads, without the columns of the process
        self.first: list[int] = []  # of which row is that of a process
        self.where: list[str] = []  # the file of each process
        self.count = self.letters = 0  # of all
        self.is_open = False  # whether threads of the last process can follow

    @property
    def is_full(self) -> bool:
        return self.count >= self.most or self.letters >= _CHUNK_LETTERS

    def add_line(self, name: str, line: str, cells: list[str], fill: list[tuple[int, str]]) -> str:
        """Return what is wrong with it, or ""."""
        *texts, numbers = cells
        if not self.layout.is_whole(cells):
            if not line or line.startswith("#") or line == self.layout.head:
                return ""
            self.is_open = False  # threads that follow have lost their process
            return _wrong_width(line.count(",") + 1, self.layout.width)
        if not numbers.startswith(","):
            self.is_open = True
            if _BACKSLASH in line or _COMMA in line:
                texts = [it.replace(_COMMA, ",").replace(_BACKSLASH, "\\") for it in texts]
            self.add_process(name, _filled(texts, fill), numbers)
            return ""
        if not self.is_open:
            return "a thread without its process"
        self.is_open = self.add_thread(numbers)
        return "" if self.is_open else "too many threads of one process"

    def add_process(self, name: str, texts: list[str], numbers: str) -> None:
        self.first.append(self.count - self.sealed)
        self.texts.append(texts)
        self.numbers.append(numbers)
        self.where.append(name)
        self.count += 1
        self.letters += len(numbers) + sum(map(len, texts))

    def add_thread(self, numbers: str) -> bool:
        """Return False if the process, which is in one chunk, has too many."""
        if self.count - self.sealed - self.first[-1] >= _MOST_THREADS or self.letters >= 4 * _CHUNK_LETTERS:
            return False
        cells = numbers.split(",")
        self.threads.append(",".join([cells[at] for at in self.layout.of_threads]))
        self.count += 1
        self.letters += len(numbers)
        return True

    def add_lines(self, lines: _Lines, fill: list[tuple[int, str]]) -> None:
        """Add the processes that come next, as far as the C library can read them."""
        import numpy

        layout, most = self.layout, max(self.most - self.count, 0)
        until = lines.at + max(_CHUNK_LETTERS - self.letters, 0)
        end, texts, *found = counter_file.native.parse_rows(
            lines.data, lines.at, until, layout.kinds, most, HINTS_IN_C
        )
        own, further, first, suspects = (numpy.frombuffer(it or b"", dtype=numpy.int64) for it in found)
        if len(first):
            self.seal()
            for place, text in fill:
                texts[place] = [cell or text for cell in texts[place]]
            further = further.reshape(-1, len(layout.of_threads))
            self._add(_Block(texts, own.reshape(-1, len(layout.numbers)), further, first, suspects))
            self.count = self.sealed
            self.letters += end - lines.at
            lines.number += len(first) + len(further)
            lines.at = end

    def _add(self, block: _Block) -> None:
        self.blocks.append(block._replace(first=block.first + self.sealed))
        self.sealed += len(block.first) + len(block.further)

    def seal(self) -> None:
        """Make a block of the rows that were added one by one."""
        if not self.first:
            return
        try:
            self._add(self._block())
        except ValueError:
            self._leave_out_broken()
            if self.first:
                self._add(self._block())
        self.texts, self.numbers, self.threads, self.first, self.where = [], [], [], [], []
        self.count = self.sealed

    def _block(self) -> _Block:
        """Raises ValueError if a cell is no number of 64 bits."""
        import numpy

        return _Block(
            list(map(list, zip(*self.texts))),
            _matrix(self.numbers, len(self.layout.numbers)),
            _matrix(self.threads, len(self.layout.of_threads)),
            numpy.array(self.first, dtype=numpy.int64),
            numpy.arange(len(self.first)),
        )

    def chunk(self) -> Chunk | None:
        import numpy

        self.seal()
        if not self.count:
            return None
        layout, starts = self.layout, numpy.concatenate([it.first for it in self.blocks])
        own = numpy.concatenate([it.own for it in self.blocks])
        further = numpy.concatenate([it.further for it in self.blocks])
        is_further = numpy.ones(self.count, dtype=bool)
        is_further[starts] = False

        def of_threads(place: int) -> Numbers:
            at = layout.of_threads[place]
            if not len(further):
                return numpy.ascontiguousarray(own[:, at])
            found = numpy.empty(self.count, dtype=numpy.int64)
            found[starts], found[is_further] = own[:, at], further[:, place]
            return found

        columns = dict(zip(layout.numbers, own.T))
        per_thread = {layout.numbers[at]: of_threads(place) for place, at in enumerate(layout.of_threads)}
        texts = (list(chain.from_iterable(parts)) for parts in zip(*(it.texts for it in self.blocks)))
        return Chunk(
            dict(zip(layout.texts, texts)),
            {name: numpy.ascontiguousarray(columns[name]) for name in NUMBERS if name in columns},
            starts,
            numpy.diff(starts, append=self.count),
            columns["numtids"],
            {name: values for name, values in per_thread.items() if name not in _NOT_METRICS},
            {name: values for name, values in per_thread.items() if name in _PER_THREAD},
            _placed([(len(it.first), it.suspects) for it in self.blocks]),
        )

    def _leave_out_broken(self) -> None:
        """Keep the processes all of whose numbers are numbers, as are those of their threads."""
        texts, numbers, threads, ends = self.texts, self.numbers, iter(self.threads), [*self.first[1:]]
        ends.append(self.count - self.sealed)
        self.texts, self.numbers, self.threads, kept = [], [], [], []
        for number, (begin, end) in enumerate(zip(self.first, ends)):
            own, mine = numbers[number], [next(threads) for _ in range(begin + 1, end)]
            wrong = next(
                (it for cells in (own, *mine) for it in cells.split(",") if not _is_number(it)), None
            )
            if wrong is None:
                kept.append(len(self.numbers) + len(self.threads))
                self.texts.append(texts[number])
                self.numbers.append(own)
                self.threads += mine
            else:
                pid = own.split(",")[self.layout.numbers.index("pid")]
                self.broken(self.where[number], f"process {pid:.20}: {wrong!r:.40} is not a number")
        self.first = kept


def _placed(parts: list[tuple[int, Numbers]]) -> Numbers:
    """Return places in all blocks, from those in each and the number of its processes."""
    import numpy

    begins = numpy.cumsum([0, *(count for count, _ in parts)])
    return numpy.concatenate([places + begin for (_, places), begin in zip(parts, begins)])


def _matrix(rows: list[str], width: int) -> Numbers:
    import numpy

    found: Numbers = _numbers(rows, width * len(rows)) if rows else numpy.empty(0, dtype=numpy.int64)
    return found.reshape(len(rows), width)


class _Groups:
    """Collects rows until there are enough of them for a chunk."""

    def __init__(self, broken: Broken, most: int) -> None:
        self.broken, self.most = broken, most
        self._names: tuple[str, ...] = ()
        self._rows: _Rows | None = None

    def flush(self) -> Iterator[Chunk]:
        if self._rows is not None:
            chunk = self._rows.chunk()
            self._rows = _Rows(self._rows.layout, self.broken, self.most)
            if chunk is not None:
                yield chunk

    def take_csv(
        self, name: str, host: str, names: tuple[str, ...], lines: _Lines, tags: str
    ) -> Iterator[Chunk]:
        if names != self._names or self._rows is None:
            yield from self.flush()
            self._names, self._rows = names, _Rows(_Layout(names), self.broken, self.most)
        rows, following = self._rows, _unescaped(lines)
        rows.is_open, layout = False, rows.layout
        fill = layout.places({"hostname": host, "tags": tags})
        is_native = layout.kinds and hasattr(counter_file.native, "parse_rows")
        while lines.fill():
            if is_native:
                rows.add_lines(lines, fill)
            for line in islice(following, 1):
                cells = layout.split(line)
                if rows.is_full and layout.is_process(cells):
                    yield from self.flush()
                    rows = self._rows
                if problem := rows.add_line(name, line, cells, fill):
                    self.broken(f"{name}:{lines.number}", problem)

    def take_tsv(
        self, name: str, head: tuple[tuple[str, ...], tuple[str, ...]], lines: Iterator[str]
    ) -> Iterator[Chunk]:
        yield from self.flush()
        metrics, names = head
        records: list[list[str]] = []
        letters = 0
        for line in self._whole_lines(name, len(names), lines):
            cells = line.split("\t")
            if len(records) >= self.most or letters >= _CHUNK_LETTERS:
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


def _unescaped(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines with signs in place of escaped characters.

    A line that ends in a backslash goes on in the next one.
    """
    before = ""
    for raw in lines:
        line = raw
        if "\\" in raw:
            line = raw.replace("\\\\", _BACKSLASH).replace("\\,", _COMMA)
            if line.endswith("\\") and len(before) < _LONGEST_LINE:
                before += line[:-1] + "\n"
                continue
            line = _ESCAPED.sub(r"\1", line) if "\\" in line else line
        yield before + line if before else line
        before = ""
    if before:
        yield before


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
    plain = f",{text.replace(' ', '')},"
    # NumPy takes a sign or a blank for 0, and a sign that is not beside its number.
    if text.encode().translate(None, _OF_NUMBERS) or "-," in plain or ",," in plain or "- " in text:
        raise ValueError("not a number")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # what NumPy says of text that is no number
        try:
            found: Numbers = numpy.fromstring(text, dtype=numpy.int64, sep=",")
        except DeprecationWarning:
            raise ValueError("not a number") from None
    most = numpy.iinfo(numpy.int64)
    # Too large for 64 bits.
    if len(found) != count or int(found.max()) == most.max or int(found.min()) <= -most.max:
        raise ValueError("not a number of 64 bits")
    return found


def _is_number(cell: str) -> bool:
    """As `_numbers` takes it among others, with any number of zeros in front."""
    found = _NUMBER.fullmatch(cell)
    return found is not None and int(found[1]) < (1 << 63) - 1


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
        numpy.arange(len(records)),
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
    if not all(map(_is_number, values)):
        broken(name, "a metric is not a number")
        return True
    return False
