"""Command lines without the values of passwords, tokens and keys, as capture/preload.c writes them too."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Dict, Iterable, List, Optional, Tuple

    Value = Tuple[int, int]  # where it begins and ends in a text

MASK = "***"
# A command line without any of these has no secret: most have none, and need no regular expression.
_HINTS = ("pass", "pwd", "secret", "token", "key", "credential", "authorization", "bearer", "://")
_BLANKS, _QUOTES = " \t\n", "\"'"
_WORDS = (
    r"passwords?|passwd|passphrase|(?<![a-z])pass|(?<=[-_])pwd|secrets?|token|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credentials?|authorization|bearer"
)
_SECRET = rf"(?<![\w.-])[\w.-]*?(?:{_WORDS})(?![a-z])[\w.-]*"  # a name with one of the words
_ADDRESS = rf"://[^/@:{_BLANKS}{_QUOTES}]*:"  # up to its password
_AUTHORIZATION = r"authorization(?![a-z])"
_SCHEME = rf"(?:bearer|basic)[{_BLANKS}]+"
_VALUES = {  # by the quote that ends it
    "": rf"[^{_BLANKS}{_QUOTES}&;,]+",
    '"': r'(?s:[^"\\]|\\.|\\\Z)+',
    "'": r"(?s:[^'\\]|\\.|\\\Z)+",
}
_LEADING = r"[\w.=-]+"  # before a name: `--env=`
_patterns: Dict[str, re.Pattern[str]] = {}  # compiled when they are first needed


def mask_arguments(arguments: Iterable[str]) -> List[str]:
    """Replace the secrets in arguments, also the one that follows `--password`."""
    found = list(arguments)
    if not any(map(_may_have_secret, found)):
        return found
    is_secret = False
    for number, argument in enumerate(found):
        if is_secret and not _is_option(argument, 0):
            found[number], is_secret = MASK, False
        else:
            found[number], is_secret = _mask(argument, is_argument=True)
    return found


def mask_secret(text: str) -> str:
    """Replace the secrets in a command line whose arguments are not known one by one."""
    return _mask(text, is_argument=False)[0]


def mask_secrets(commands: List[str]) -> List[str]:
    """Mask many: only if any of them has one of the words, they are looked at one by one."""
    if not _may_have_secret("\n".join(commands)):
        return commands
    masked = {command: mask_secret(command) for command in set(commands)}  # many are alike
    return [masked[command] for command in commands]


def _may_have_secret(text: str) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS)


def _mask(text: str, is_argument: bool) -> Tuple[str, bool]:
    """Return the text without secrets, and whether the next argument is one."""
    if not _may_have_secret(text):
        return text, False
    spots = _pattern(f"{_SECRET}|{_ADDRESS}")
    leading = _skip(_LEADING, text, 0) if is_argument else -1
    parts: List[str] = []
    at = written = searched = 0
    is_next = False
    while True:
        spot = spots.search(text, at)
        if spot is None:
            return "".join([*parts, text[written:]]), is_next
        first, at = spot.span()
        value = None
        if text[first] != ":":
            value = _find_value(text, first, at, first <= leading and not parts)
            is_next = at == len(text) and text[first] == "-"
        else:
            if first >= searched:
                value, searched = _find_password(text, at, searched)
            at = first + len("://")
        if value is not None:
            parts += [text[written : value[0]], MASK]
            at = written = value[1]


def _find_value(text: str, first: int, last: int, is_leading: bool) -> Optional[Value]:
    """Return where the value is that follows the name of a secret."""
    before = text[first - 1 : first]
    at = _skip_quote(text, last)
    is_quoted = at > last
    is_given = text[at : at + 1] in ("=", ":")
    if not is_given and not _takes_next_word(text, first, last, at):
        return None
    at = _skip(f"[{_BLANKS}]+", text, at + is_given)
    opened, closing = _skip_quote(text, at), ""
    to_end = is_given and is_leading and not is_quoted
    if not to_end and opened > at:
        at, closing = opened, text[opened - 1]
    elif not to_end and is_given and before and before in _QUOTES and not is_quoted:
        closing = before
    elif is_given and _pattern(_AUTHORIZATION).search(text, first, last):
        to_end = True
    if is_given:
        at = _skip(_SCHEME, text, at)
    elif not closing and _is_option(text, at):
        return None
    value = "(?s:.+)" if to_end else _VALUES[closing]
    end = _skip(value, text, at)
    return (at, end) if end > at else None


def _takes_next_word(text: str, first: int, last: int, at: int) -> bool:
    """Whether a blank and a value may follow: `--password VALUE`, `Bearer VALUE`."""
    is_named = text[first] == "-" or text[first:last].lower().endswith("bearer")
    return is_named and text[at : at + 1] != "" and text[at] in _BLANKS


def _find_password(text: str, first: int, searched: int) -> Tuple[Optional[Value], int]:
    """Return where it is in `://USER:PASSWORD@`: up to the last @ before a blank or another secret.
    If there is none, also return up to where this is known."""
    end = _skip(f"[^{_BLANKS}]+", text, first)
    for spot in _pattern(_SECRET).finditer(text, first, end):
        if _find_value(text, spot.start(), spot.end(), is_leading=False):
            end = spot.start()
            break
    last = text.rfind("@", first, end)
    return ((first, last), searched) if last > first else (None, end)


def _is_option(text: str, at: int) -> bool:
    """Whether this is the next option, and not the value of the one before."""
    stops = ("", *_BLANKS, *_QUOTES)
    if text[at : at + 1] != "-":
        return False
    return text[at + 1 : at + 2] in (*stops, "-") or text[at + 2 : at + 3] in stops


def _skip_quote(text: str, at: int) -> int:
    """Also one with a backslash before it."""
    quote = at + (text[at : at + 1] == "\\")
    return quote + 1 if text[quote : quote + 1] in ('"', "'") else at


def _skip(expression: str, text: str, at: int) -> int:
    found = _pattern(expression).match(text, at)
    return found.end() if found else at


def _pattern(expression: str) -> re.Pattern[str]:
    if expression not in _patterns:
        import re

        _patterns[expression] = re.compile(expression, re.IGNORECASE | re.ASCII)
    return _patterns[expression]
