"""Command lines without the values of passwords, tokens and keys, as capture/preload.c writes them too."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Iterable, List

MASK = "***"
# A command line without any of these has no secret: most have none, and need no regular expression.
_HINTS = ("pass", "secret", "token", "key", "credential", "authorization", "bearer", "://")
_NAME = (
    r"(?:password|passwd|passphrase|secrets?|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credentials?|authorization|bearer)(?![a-z])[\w.-]{0,40}"
)
_VALUE = r"[^\s\"'&;,]+"
_patterns: List[re.Pattern[str]] = []  # compiled when they are first needed


def mask_arguments(arguments: Iterable[str]) -> List[str]:
    """Replace the secrets in arguments, also the one that follows `--password`."""
    found = list(arguments)
    if not any(map(_may_have_secret, found)):
        return found
    *_, ends = _compile_patterns()
    for number, argument in enumerate(found):
        found[number] = mask_secret(argument)
        if ends.search(argument) and number + 1 < len(found) and not found[number + 1].startswith("-"):
            found[number + 1] = MASK
    return found


def mask_secret(text: str) -> str:
    """Replace the secrets in a command line."""
    if not _may_have_secret(text):
        return text
    for pattern in _compile_patterns()[:-1]:
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def mask_secrets(commands: List[str]) -> List[str]:
    """Mask many: only if any of them has one of the words, they are looked at one by one."""
    if not _may_have_secret("\n".join(commands)):
        return commands
    return [mask_secret(command) for command in commands]


def _may_have_secret(text: str) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS)


def _compile_patterns() -> List[re.Pattern[str]]:
    if not _patterns:
        import re

        head = rf"({_NAME}[\"']?[=:][\s\"']*(?:(?:bearer|basic)\s+)?){_VALUE}"
        option = rf"((?<![\w.-])-[\w.-]{{0,40}}?{_NAME}[\"']?\s[\s\"']*)(?!-){_VALUE}"
        bearer = rf"(bearer(?![a-z])\s+)(?!\*){_VALUE}"
        address = r"(://[^/@\s:]*:)[^/@\s]+(?=@)"
        ends = rf"(?<![\w.-])-[\w.-]{{0,40}}?{_NAME}$"
        _patterns.extend(re.compile(it, re.IGNORECASE) for it in (head, option, bearer, address, ends))
    return _patterns
