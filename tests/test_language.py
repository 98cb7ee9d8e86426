"""Docstrings, comments, messages and documentation use the field's own terms.

python tests/test_language.py [FOLDER OR FILE…] lists every text with a stock phrase, and the share of them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parents[1]
SOURCE = TOP / "src" / "joblens"
PAGES = (
    TOP / "README.md",
    TOP / "CHANGELOG.md",
    TOP / "CONTRIBUTING.md",
    TOP / "docs",
    TOP / "bench/README.md",
)
GENERATED = {TOP / "docs/metrics.md"}
LARGEST_SHARE_OF_PAGES = 0.01
NOT_PROSE = re.compile(
    r"^ *```.*?^ *```|<!--[^>]*\bgenerated\b.*?(?:<!-- end.*?-->|\Z)|`[^`\n]*(?:\n[^`\n]+)?`",
    re.DOTALL | re.MULTILINE,
)
LARGEST_SHARE = 0.02

# Metaphors and idioms that a reader who knows Linux, Prometheus and Slurm has to guess. Write instead:
# sample, scan, read; report, say, state; wrap around, be reused; unattributed, no process; other users';
# rebuild, retry; timeout; received, in flight, unreachable.
STOCK = re.compile(
    r"\b(told|tells?|telling|looks?|looked|looking)\b(?! up\b)"
    r"|\b(comes?|came|coming) round\b|\b(has|have|had|what) come\b|\bis there twice\b"
    r"|\b(nobody|whoever|anew|strangers?|knock\w*|patience|heirs?)\b|\bdoors?\b"
    r"|\bmade good\b|\bput aside\b|\bunder way\b|\b(is|are|was|were) away\b|\bno word\b|\bword about\b"
    r"|\bis no (?!longer|more|such|match)|\bare no (?!longer|more|such)|\bwaits? for nobody\b"
    r"|\b(is|are|was|were) at (it|work)\b|\bon (its|their) way\b|\bbegins? as one\b|\bas it was written\b",
    re.IGNORECASE,
)
# A docstring says in the imperative what a function does, or names what it is or returns.
STOCK_OPENING = re.compile(r"(What|Who|Whose|Whoever|Of|Those|That|The same|All that)\b")


class Text(NamedTuple):
    path: Path
    line: int
    kind: str  # docstring, comment, message or paragraph
    text: str

    @property
    def is_stock(self) -> bool:
        return bool(STOCK.search(self.text)) or (
            self.kind == "docstring" and bool(STOCK_OPENING.match(self.text))
        )


def read_paragraphs(path: Path) -> Iterator[Text]:
    """Yield paragraphs, list items and table rows, without code, quoted output and generated blocks."""
    source = NOT_PROSE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
    lines: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if lines and re.match(r"\s*$|\s*[-|#]|\s*\d+\. ", line):
            yield Text(path, number - len(lines), "paragraph", "\n".join(lines))
            lines = []
        if line.strip():
            lines.append(line)


def read_texts(path: Path) -> Iterator[Text]:
    if path.suffix == ".md":
        yield from read_paragraphs(path)
        return
    source = path.read_text()
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                first = node.body[0]
                assert isinstance(first, ast.Expr)
                docstrings.add(id(first.value))
                yield Text(path, first.lineno, "docstring", text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if " " in node.value.strip():
            yield Text(path, node.lineno, "message", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], "comment", token.string)


def read_all(*places: Path) -> list[Text]:
    files = [
        file
        for place in places
        for file in ([place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.md")]))
    ]
    return [text for file in files if file.resolve() not in GENERATED for text in read_texts(file)]


def check(texts: list[Text], largest_share: float) -> None:
    stock = [text for text in texts if text.is_stock]
    listed = "\n".join(f"{it.path.relative_to(TOP)}:{it.line}: {it.text[:80]!r}" for it in stock[:40])
    assert len(stock) <= largest_share * len(texts), f"{len(stock)} of {len(texts)}:\n{listed}"


def test_texts_use_the_terms_of_the_field() -> None:
    check(read_all(SOURCE), LARGEST_SHARE)


def test_documentation_uses_the_terms_of_the_field() -> None:
    texts = read_all(*PAGES)
    assert len(texts) > 500
    check(texts, LARGEST_SHARE_OF_PAGES)


def test_paragraphs_without_output(tmp_path: Path) -> None:
    """Code, quoted output and generated blocks are not judged; every list item and table row is."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\nOne that\ntells.\n\n```\nlook\n```\n- `look`\n- nobody\n  waits\n\n| a | told |\n"
        "<!-- generated -->\n| anew |\n<!-- end -->\n"
    )
    assert [text.line for text in read_paragraphs(page) if text.is_stock] == [3, 10, 13]


if __name__ == "__main__":
    found = read_all(*(map(Path, sys.argv[1:]) if sys.argv[1:] else [SOURCE]))
    bad = [text for text in found if text.is_stock]
    for it in bad:
        print(f"{it.path}:{it.line}: {it.kind}: {' '.join(it.text.split())[:110]}")
    print(f"{len(bad)} of {len(found)} texts ({len(bad) / max(len(found), 1):.1%}) have a stock phrase")
