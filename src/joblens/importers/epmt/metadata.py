"""`job_metadata` of an archive: a pickled dict, read without executing anything.

Only dicts, lists, texts, numbers and the classes of `datetime` are made. Other opcodes (persistent ids,
extensions, changes of objects) are refused. The unpickler is the one in Python: for a memo index of billions,
the one in C would allocate as much memory.
"""

from __future__ import annotations

import datetime
import io
import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from joblens.core.errors import MalformedError

LARGEST = 8 << 20  # bytes
_LONGEST_TEXT = 1 << 16
_MOST_NAMES = 1000  # tags or annotations
_MOST_PARTS = 100 * 1000  # of an annotation: a hundred for each, and its letters
_OPCODES = frozenset(
    "MARK STOP POP POP_MARK DUP FLOAT INT BININT BININT1 LONG BININT2 NONE REDUCE STRING BINSTRING "
    "SHORT_BINSTRING UNICODE BINUNICODE APPEND GLOBAL DICT EMPTY_DICT APPENDS GET BINGET LONG_BINGET LIST "
    "EMPTY_LIST SETITEM TUPLE EMPTY_TUPLE SETITEMS BINFLOAT PUT BINPUT LONG_BINPUT PROTO TUPLE1 TUPLE2 "
    "TUPLE3 NEWTRUE NEWFALSE LONG1 LONG4 BINBYTES SHORT_BINBYTES SHORT_BINUNICODE BINUNICODE8 BINBYTES8 "
    "STACK_GLOBAL MEMOIZE FRAME".split()
)
_CLASSES = {name: getattr(datetime, name) for name in ("datetime", "date", "time", "timedelta", "timezone")}
_USER_VARIABLES = ("SLURM_JOB_USER", "PBS_O_LOGNAME", "USER", "LOGNAME")
_NAME_VARIABLES = ("SLURM_JOB_NAME", "PBS_JOBNAME")
_TAGS_VARIABLE = "EPMT_JOB_TAGS"


class Metadata(NamedTuple):
    """What an archive says of its job. Times may have no zone."""

    id: str
    user: str
    name: str
    host: str
    submit: datetime.datetime | None
    start: datetime.datetime | None
    stop: datetime.datetime | None
    exit_code: int | None
    reason: str
    tags: dict[str, str]
    annotations: dict[str, str]
    environment: dict[str, str]
    problems: list[str]


class _Encode:
    """`_codecs.encode`, by which Python 3 writes bytes in the formats of Python 2."""

    def __init__(self) -> None:
        self.left = LARGEST  # bytes: one text can be encoded many times

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str):
            raise pickle.UnpicklingError("it encodes what is not a text")
        self.left -= len(text)
        if self.left < 0:
            raise pickle.UnpicklingError("it encodes the same text too often")
        return text.encode("latin1")


class _Unpickler(pickle._Unpickler):
    stack: list[Any]
    metastack: list[list[Any]]
    dispatch: ClassVar[dict[int, Any]] = {
        code: method
        for code, method in pickle._Unpickler.dispatch.items()
        if code in {getattr(pickle, name)[0] for name in _OPCODES}
    }

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="bytes")  # Python 2 has no other texts
        self._encode = _Encode()

    def _check_keys(self, keys: list[Any]) -> None:
        """The hash of a tuple takes all its parts, and one tuple can be many parts of another."""
        for key in keys:
            if type(key) not in (str, bytes, int):
                raise pickle.UnpicklingError(f"a {type(key).__name__} is a key of a dict")

    def load_dict(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_dict()  # type: ignore[misc]

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_setitems()  # type: ignore[misc]

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems

    def find_class(self, module: str, name: str) -> Any:
        if module == "datetime" and name in _CLASSES:
            return _CLASSES[name]
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not data")


def parse_metadata(where: str, data: bytes) -> Metadata:
    """Raises MalformedError."""
    try:
        plain = unpickle(data)
    except pickle.UnpicklingError as error:
        raise MalformedError(where, f"job_metadata is refused: {error!s:.200}") from None
    except KeyError:
        raise MalformedError(
            where, "job_metadata is refused: it uses an opcode that is not for data"
        ) from None
    except Exception as error:  # whatever malformed opcodes lead to; nothing was executed
        raise MalformedError(where, f"job_metadata is damaged: {type(error).__name__}") from None
    if not isinstance(plain, dict):
        raise MalformedError(where, f"job_metadata is of type {type(plain).__name__}, not a dict")
    return _Fields(where, {text(name): value for name, value in plain.items()}).read()


def unpickle(data: bytes) -> object:
    """Raises pickle.UnpicklingError, and almost any other error for damaged data."""
    if len(data) > LARGEST:
        raise pickle.UnpicklingError("it is too large")
    return _Unpickler(io.BytesIO(data)).load()


def text(value: object) -> str:
    """Return a text of either Python; of another object nothing."""
    if isinstance(value, bytes):
        value = value[: 4 * _LONGEST_TEXT].decode("utf-8", "replace")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return str(value)
    return value[:_LONGEST_TEXT].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def parse_tags(value: object) -> dict[str, str]:
    """`exp:a;model:b`, or a dict. A word without a value has the value 1, as in EPMT."""
    if isinstance(value, dict):
        pairs = ((text(name), _render(it)) for name, it in value.items())
        return _limited((name, it) for name, it in pairs if name)
    found = (word.strip() for word in text(value).split(";"))
    return _limited(_split_tag(word) for word in found if word)


def _split_tag(word: str) -> tuple[str, str]:
    for sign in (":", "="):
        name, separator, value = word.partition(sign)
        if separator and name.strip():
            return name.strip(), value.strip()
    return word, "1"


def _limited(pairs: Iterator[tuple[str, str]]) -> dict[str, str]:
    return dict(pair for _, pair in zip(range(_MOST_NAMES), pairs))


def _render(value: object) -> str:
    """Return a value of any type as text: JSON, if it is neither text nor number."""
    if isinstance(value, (str, bytes)):
        return text(value)
    try:
        return json.dumps(_plain(value, [_MOST_PARTS]), ensure_ascii=False)[:_LONGEST_TEXT]
    except (ValueError, RecursionError):
        return "(too large)"


def _plain(value: object, budget: list[int]) -> object:
    """Return what JSON can have. One object can be part of many others: so their size is limited."""
    budget[0] -= 100 + (len(value) if isinstance(value, (str, bytes)) else 0)
    if budget[0] < 0:
        raise ValueError("too many parts")
    if isinstance(value, dict):
        return {text(name): _plain(it, budget) for name, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(it, budget) for it in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return text(value) if isinstance(value, (str, bytes)) else str(value)


class _Fields:
    def __init__(self, where: str, plain: Mapping[str, object]) -> None:
        self.where, self.plain, self.problems = where, plain, list[str]()

    def read(self) -> Metadata:
        id = text(self.plain.get("job_pl_id"))
        if not id:
            raise MalformedError(self.where, "job_metadata has no job id")
        begin, end = self._environment("job_pl_env"), self._environment("job_el_env")
        both = begin | end
        tags = self.plain.get("job_tags") or both.get(_TAGS_VARIABLE, "")
        annotations = self.plain.get("annotations")
        if annotations is not None and not isinstance(annotations, dict):
            self.problems.append(f"annotations are a {type(annotations).__name__}, not a dict; left out")
            annotations = {}
        notes = parse_tags(annotations or {})
        return Metadata(
            id=id,
            user=text(self.plain.get("job_pl_username")) or _first(both, _USER_VARIABLES) or "unknown",
            name=text(self.plain.get("job_jobname")) or _first(both, _NAME_VARIABLES) or "unknown",
            host=text(self.plain.get("job_pl_hostname")),
            submit=self._time("job_pl_submit_ts"),
            start=self._time("job_pl_start_ts"),
            stop=self._time("job_el_stop_ts"),
            exit_code=self._exit_code(),
            reason=text(self.plain.get("job_el_reason")),
            tags=parse_tags(tags) or parse_tags(notes.get(_TAGS_VARIABLE, "")),
            annotations=notes,
            environment=both,
            problems=self.problems,
        )

    def _environment(self, name: str) -> dict[str, str]:
        found = self.plain.get(name)
        if not isinstance(found, dict):
            return {}
        texts, size = dict[str, str](), 0
        for key, value in found.items():
            texts[text(key)] = shown = text(value)
            size += len(shown)
            if size > LARGEST:
                raise MalformedError(self.where, f"job_metadata is refused: {name} repeats a long text")
        return texts

    def _time(self, name: str) -> datetime.datetime | None:
        found = self.plain.get(name)
        if isinstance(found, datetime.datetime):
            return found
        if found is not None:
            self.problems.append(f"{name} is of type {type(found).__name__}, not a time")
        return None

    def _exit_code(self) -> int | None:
        found = self.plain.get("job_el_exitcode")
        if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 1 << 31:
            return found
        if found is not None:
            self.problems.append("job_el_exitcode is not a number")
        return None


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
