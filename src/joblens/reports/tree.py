"""The processes that mattered, as a tree in which like siblings stand together."""

from __future__ import annotations

from joblens.analysis.processes import is_own
from joblens.core.units import render_bytes, render_seconds
from joblens.record.report import ProcessUse
from joblens.reports.width import left, plain

_MOST_LINES = 12
_UNKNOWN, _AT_LEAST = "-", "≥"
_MANY_ALIKE = 3  # calls of one program with other arguments that stand together
_LEFT_BEHIND = " (left behind)"
_MOST_PROCESSES = 200
_SHORTEST_TITLE = 4
_FIGURES, _THREADS = 25, 13  # columns
_WIDE = 70  # columns, with room for the number of threads


class _Node:
    def __init__(self, process: ProcessUse, is_sampled: bool) -> None:
        self.process = process
        self.children: list[_Node] = []
        alike = int(process.alike or 0)  # others of the program, that are not kept one by one
        self.count = 1 + alike
        self.cpu = _add(process.cpu_seconds, process.alike_cpu_seconds if alike else None)
        self.is_less = bool(process.alike_unknown) or (alike > 0 and process.cpu_seconds is None)
        self.memory = process.memory_peak_bytes
        self.is_sampled = is_sampled  # its memory: it can have had more
        self.threads = int(process.threads or 0)
        self.title = _program(process) if alike else _title(process)
        self.left_behind = bool(process.left_behind)
        self.is_program = alike > 0  # it stands for calls with other arguments too

    @property
    def birth(self) -> tuple[int, int]:
        return self.process.start, self.process.pid

    @property
    def weight(self) -> float:
        return (self.cpu or 0.0) + sum(child.weight for child in self.children)

    def take(self, other: _Node) -> None:
        """One like it: CPU adds up, of memory the largest is shown."""
        self.count += other.count
        self.is_less = self.is_less or other.is_less or (self.cpu is None) != (other.cpu is None)
        self.cpu = _add(self.cpu, other.cpu)
        self.memory = _most(self.memory, other.memory)
        self.is_sampled = self.is_sampled or other.is_sampled
        self.threads = max(self.threads, other.threads)
        self.left_behind = self.left_behind or other.left_behind
        self.children = _merged([*self.children, *other.children])


def _add(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _most(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def render_tree(processes: list[ProcessUse], width: int, unsampled: float = 0.0) -> list[str]:
    """`unsampled`: CPU seconds of processes that no sample has seen."""
    lines: list[str] = []
    own = list(filter(_is_own, processes))
    _render(_merged(_grow(processes[:_MOST_PROCESSES])), "", lines, width, top=True)
    if len(lines) > _MOST_LINES:
        rest = len(lines) - _MOST_LINES + 1
        lines = [*lines[: _MOST_LINES - 1], f" … and {rest} more, see --json"]
    if own:
        lines.append(_own_line(own, width))
    if unsampled:
        lines.append(_line(" short-lived, not sampled", _seconds(unsampled), "", 0, width))
    return lines


def _grow(processes: list[ProcessUse]) -> list[_Node]:
    """Return the roots. A pid is reused: the parent is its last owner before the child was born.

    A process that joblens started is a child of the process that started joblens.
    """
    are_some_exact = any(it.memory_exact for it in processes)  # else all are sampled, which the report says
    nodes = sorted(
        (_Node(it, are_some_exact and not it.memory_exact) for it in processes), key=lambda node: node.birth
    )
    living: dict[tuple[str, int], _Node | None] = {}
    tops: list[_Node] = []
    for node in nodes:
        place = node.process.node
        parent = living.get((place, node.process.parent))
        own = _is_own(node.process)
        if not own:
            (parent.children if parent else tops).append(node)
        living[place, node.process.pid] = parent if own else node
    return tops


def _merged(nodes: list[_Node]) -> list[_Node]:
    """Siblings that were called alike as one, and of many that differ in their arguments only, too."""
    groups: dict[tuple[str, ...], _Node] = {}
    for node in nodes:
        node.children = _merged(node.children)
        name = (node.title, *sorted(child.title for child in node.children))
        if name in groups:
            groups[name].take(node)
        else:
            groups[name] = node
    programs: dict[str, list[_Node]] = {}
    for node in groups.values():
        programs.setdefault(_program(node.process), []).append(node)
    merged = [it for name, alike in programs.items() for it in _by_program(name, alike)]
    return sorted(merged, key=lambda node: -node.weight)


def _by_program(name: str, nodes: list[_Node]) -> list[_Node]:
    if len(nodes) < _MANY_ALIKE and not any(node.is_program for node in nodes):
        return nodes
    first, *others = nodes
    first.title, first.is_program = name, True
    for other in others:
        first.take(other)
    return [first]


def _program(process: ProcessUse) -> str:
    """`cc1`, and `sh` whatever it was given to do."""
    return _title(process).partition(" ")[0] or str(process.name)


def _title(process: ProcessUse) -> str:
    """Return the command line without the folder of the program."""
    program, blank, rest = plain(process.command or process.name).partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


def _render(nodes: list[_Node], indent: str, lines: list[str], width: int, top: bool) -> None:
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        head = f" {indent}" + ("" if top else ("└ " if last else "├ "))
        count = f" ×{node.count}" if node.count > 1 else ""
        count += _LEFT_BEHIND if node.left_behind else ""
        room = width - _FIGURES - (_THREADS if width >= _WIDE else 0) - 1
        head = head[: max(room - len(count) - _SHORTEST_TITLE, 1)]  # of one that is nested deeply
        title = plain(node.title, max(room - len(head) - len(count), _SHORTEST_TITLE))
        cpu = _seconds(node.cpu, _AT_LEAST if node.is_less else "")
        memory = _bytes(node.memory, _AT_LEAST if node.is_sampled else "")
        lines.append(_line(head + title + count, cpu, memory, node.threads, width))
        _render(node.children, indent + ("" if top else "  " if last else "│ "), lines, width, top=False)


def _is_own(process: ProcessUse) -> bool:
    """The kernel reports the end of a process without its arguments."""
    return is_own(process.command or process.name)


def _own_line(own: list[ProcessUse], width: int) -> str:
    cpu = _add(*(process.cpu_seconds for process in own))
    most = _most(*(process.memory_peak_bytes for process in own))
    count = f" ×{len(own)}" if len(own) > 1 else ""
    return _line(f" joblens itself{count}", _seconds(cpu), _bytes(most), 0, width)


def _line(name: str, cpu: str, memory: str, threads: int, width: int) -> str:
    figures = f"{cpu:>11} CPU {memory:>9}"
    if width >= _WIDE:
        figures += f" {plain(threads, 4):>4} threads" if threads > 1 else " " * _THREADS
    return f"{left(name, width - len(figures) - 1)} {figures}".rstrip()


def _seconds(seconds: float | None, before: str = "") -> str:
    return _UNKNOWN if seconds is None else before + plain(render_seconds(seconds), 11 - len(before))


def _bytes(count: float | None, before: str = "") -> str:
    return _UNKNOWN if count is None else before + render_bytes(count)
