"""Command lines without the values of passwords, tokens and keys, as capture/preload.c writes them too.

Further arguments are masked by patterns in JOBLENS_MASK: names of options, whose values are masked, and
patterns with `*`, of which what they begin with is kept.
"""

from __future__ import annotations

import os

from joblens.core.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Dict, Iterable, List, Optional, Sequence, Tuple

    Value = Tuple[int, int]  # where it begins and ends in a text

MASKS = "JOBLENS_MASK"  # patterns, separated by blanks; the library reads it too
_LONGEST_MASK, _MOST_MASKS = 100, 1000  # characters of one, and of all
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_WORD = r"[^ \t\n]+"

MASK, ALL = "***", "*"  # what replaces them; and the variable that masks every argument
# A command line without any of these has no secret: most have none, and need no regular expression.
_HINTS = ("pass", "pwd", "secret", "token", "key", "credential", "authorization", "bearer", "://")
HINTS_IN_C = "".join(hint + "\0" for hint in sorted(_HINTS)).encode()
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
_masks: Dict[str, List[str]] = {}  # the patterns of each value that the variable has had


def check_masks(masks: Iterable[str], path: str = "") -> List[str]:
    """Return each once. Raises ConfigError."""
    found = list(dict.fromkeys(masks))
    for mask in found:
        if not mask.isascii() or not mask.isprintable() or " " in mask or not mask.strip("*"):
            raise ConfigError(f"mask {mask!r:.60}: expected an option such as --license, or TEXT*", path)
        if len(mask) > _LONGEST_MASK:
            raise ConfigError(f"mask {mask!r:.60} has more than {_LONGEST_MASK} characters", path)
    if len(" ".join(found)) > _MOST_MASKS:
        raise ConfigError(f"the masks have more than {_MOST_MASKS} characters", path)
    return found


def use_masks(given: Sequence[str] = (), config: Optional[str] = None) -> None:
    """Mask by these patterns, those of the variable and those of the settings. Raises ConfigError."""
    add_masks(given)
    if os.environ.get(MASKS) != ALL and (config or _is_in_settings()):
        from joblens.core.config_files import load_layers, merge

        layers = load_layers(config, os.environ)
        named = merge(layers).get("mask", [])
        masks = [it for it in named if isinstance(it, str)] if isinstance(named, list) else []
        if masks != named:
            raise ConfigError("mask is not a list of strings", layers[-1].path)
        add_masks(check_masks(masks, layers[-1].path))


def add_masks(masks: Sequence[str], variable: Optional[str] = None) -> None:
    """Mask by these and those of the variable, as it is or was; here and in what this one starts."""
    given = (os.environ.get(MASKS, "") if variable is None else variable).split()
    masks = check_masks(masks)
    if ALL in given:
        os.environ[MASKS] = ALL
    elif given or masks or MASKS in os.environ:
        os.environ[MASKS] = " ".join(check_masks([*given, *masks], MASKS))


def _is_in_settings() -> bool:
    """Whether a settings file may have some: to parse it takes longer than to start a command."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    folder = folder if folder.startswith("/") else os.path.expanduser("~/.config")
    named = os.environ.get("JOBLENS_CONFIG")
    if named and not os.path.isfile(named):
        return named != os.devnull
    for path in [named] if named else ["/etc/joblens/joblens.toml", f"{folder}/joblens/joblens.toml"]:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                if b"mask" in file.read(1 << 18):
                    return True
    return False


def _find_masks() -> List[str]:
    given = os.environ.get(MASKS, "")
    if given not in _masks:
        _masks[given] = [it if "*" in it else it.rstrip("=") for it in _lower(given).split()]
    return _masks[given]


def mask_arguments(arguments: Iterable[str]) -> List[str]:
    """Replace the secrets in arguments, also the one that follows `--password`."""
    found, masks = list(arguments), _find_masks()
    if not masks and not any(map(_may_have_secret, found)):
        return found
    is_secret = False
    for number, argument in enumerate(found):
        if is_secret and not _is_option(argument, 0):
            found[number], is_secret = MASK, False
        else:
            found[number], is_secret = _mask_argument(argument, masks)
    return found


def mask_command(data: bytes, longest: int) -> str:
    """Join arguments of /proc/PID/cmdline. A word that is cut is masked: its end may tell it is secret."""
    data = data[:longest]
    if len(data) == longest and data[-1]:
        data = data[: 1 + max(map(data.rfind, (b"\0", b" ", b"\t", b"\n")))] + MASK.encode()
    return " ".join(mask_arguments(data.rstrip(b"\0").decode("utf-8", "replace").split("\0")))


def mask_secret(text: str) -> str:
    """Replace the secrets in a command line whose arguments are not known one by one."""
    masks = _find_masks()
    return _mask(_mask_words(text, masks) if masks else text, is_argument=False)[0]


def mask_secrets(commands: List[str], suspects: Optional[Iterable[int]] = None) -> List[str]:
    """Mask many. Without further patterns, only those with one of the words are looked at: those at the
    places in `suspects`, if they are known."""
    if suspects is not None and not _find_masks():
        found = list(commands)
        for place in suspects:
            found[place] = mask_secret(found[place])
        return found
    different = list(set(commands))  # many are alike
    looked_at = different if _find_masks() else _find_suspects(different)
    masked = {command: mask_secret(command) for command in looked_at}
    return [masked.get(command, command) for command in commands] if masked else commands


def _find_suspects(commands: List[str]) -> List[str]:
    from joblens.core.counter_file import native

    texts = "\0".join([*commands, ""]).encode("utf-8", "replace")
    if hasattr(native, "find_words") and texts.count(b"\0") == len(commands):
        return [commands[number] for number in native.find_words(texts, HINTS_IN_C)]
    return list(filter(_may_have_secret, commands))


def mask_further(commands: List[str]) -> List[str]:
    """Mask by the patterns alone what was masked otherwise when it was written."""
    masks = _find_masks()
    return [_mask_words(command, masks) for command in commands] if masks else commands


def _mask_argument(text: str, masks: List[str]) -> Tuple[str, bool]:
    """Return the text without secrets, and whether the next argument is one. What follows a masked word is
    left out, as it may belong to it."""
    value, is_next = _find_masked(text, masks, 0) if masks else (None, False)
    if value is not None:
        return _mask(text[: value[0]], is_argument=True)[0] + MASK, False
    masked, is_secret = _mask(text, is_argument=True)
    return masked, is_secret or is_next


def _mask_words(text: str, masks: List[str]) -> str:
    parts: List[str] = []
    at = 0
    while True:
        value, _ = _find_masked(text, masks, at)
        if value is None:
            return "".join([*parts, text[at:]])
        first, last = value
        parts += [text[at:first], MASK]
        at = len(text) if any(it in text[first:last] for it in (*_QUOTES, "\\")) else last


def _find_masked(text: str, masks: List[str], at: int) -> Tuple[Optional[Value], bool]:
    """Return where the first word is that a pattern masks, and whether it masks the next argument."""
    is_next = False
    words = [word.span() for word in _pattern(_WORD).finditer(text, at)]
    for (first, last), following in zip(words, [*words[1:], None]):
        word = _lower(text[first:last])
        for mask in masks:
            kept, star, _ = mask.partition("*")
            if star:
                if _is_like(word, mask):
                    return (first + len(kept), last), False
            elif word.startswith(mask + "="):
                return (first + len(mask) + 1, last), False
            elif word == mask and following and not _is_option(text, following[0]):
                return following, False
            elif word == mask:
                is_next = is_next or (first, last) == (0, len(text))
    return None, is_next


def _is_like(word: str, mask: str) -> bool:
    first, *parts, last = mask.split("*")
    at, end = len(first), len(word) - len(last)
    if at > end or not word.startswith(first) or not word.endswith(last):
        return False
    for part in parts:
        at = word.find(part, at, end) + len(part)
        if at < len(part):
            return False
    return True


def _lower(text: str) -> str:
    """As the library does it: letters of ASCII only."""
    return text.translate(_LOWER)


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
    is_listed = is_quoted and text[first] == "-" and text[at : at + 1] == ","  # '--password', 'VALUE'
    if not is_given and not is_listed and not _takes_next_word(text, first, last, at):
        return None
    at = _skip(f"[{_BLANKS}]+", text, at + (is_given or is_listed))
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
    elif not closing and (is_listed or _is_option(text, at)):
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
    letter = text[at + 1 : at + 2]
    return letter in (*stops, "-") or (letter.isascii() and text[at + 2 : at + 3] in stops)


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
