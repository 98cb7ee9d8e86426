"""The processes that mattered, as a tree in which like siblings stand together."""

from __future__ import annotations

from typing import Any

from joblens.reports.width import left, plain
from joblens.units import render_bytes, render_seconds

_MOST_LINES = 12
_MOST_PROCESSES = 200
_SHORTEST_TITLE = 4
_WIDE = 70  # columns, with room for the number of threads


class _Node:
    def __init__(self, process: dict[str, Any]) -> None:
        self.process = process
        self.children: list[_Node] = []
        self.count = 1
        self.cpu = float(process["cpu_seconds"] or 0)
        self.memory = int(process["memory_peak_bytes"] or 0)
        self.threads = int(process["threads"] or 0)

    @property
    def birth(self) -> tuple[int, int]:
        return self.process["start"], self.process["pid"]

    @property
    def weight(self) -> float:
        return self.cpu + sum(child.weight for child in self.children)

    def take(self, other: _Node) -> None:
        """One like it: CPU adds up, of memory the largest is shown."""
        self.count += 1
        self.cpu += other.cpu
        self.memory = max(self.memory, other.memory)
        self.threads = max(self.threads, other.threads)
        self.children = _merged([*self.children, *other.children])


def render_tree(processes: list[dict[str, Any]], width: int) -> list[str]:
    lines: list[str] = []
    _render(_merged(_grow(processes[:_MOST_PROCESSES])), "", lines, width, top=True)
    if len(lines) > _MOST_LINES:
        rest = len(lines) - _MOST_LINES + 1
        lines = [*lines[: _MOST_LINES - 1], f" … and {rest} more, see --json"]
    return lines


def _grow(processes: list[dict[str, Any]]) -> list[_Node]:
    """Those at the top. A pid comes round again: the parent is who had it last before the child was born."""
    nodes = sorted((_Node(process) for process in processes), key=lambda node: node.birth)
    living: dict[tuple[str, int], _Node] = {}
    tops: list[_Node] = []
    for node in nodes:
        place = node.process["node"]
        parent = living.get((place, node.process["parent"]))
        (parent.children if parent else tops).append(node)
        living[place, node.process["pid"]] = node
    return tops


def _merged(nodes: list[_Node]) -> list[_Node]:
    """Siblings without a difference in name and kind of children as one."""
    groups: dict[tuple[str, ...], _Node] = {}
    for node in nodes:
        node.children = _merged(node.children)
        name = (_title(node.process), *sorted(_title(child.process) for child in node.children))
        if name in groups:
            groups[name].take(node)
        else:
            groups[name] = node
    return sorted(groups.values(), key=lambda node: -node.weight)


def _title(process: dict[str, Any]) -> str:
    """What was typed, without the folders of the program."""
    program, blank, rest = plain(process["command"] or process["name"]).partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest


def _render(nodes: list[_Node], indent: str, lines: list[str], width: int, top: bool) -> None:
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        head = f" {indent}" + ("" if top else ("└ " if last else "├ "))
        count = f" (×{node.count})" if node.count > 1 else ""
        figures = f"{_seconds(node.cpu):>11} CPU {render_bytes(node.memory):>9}"
        if width >= _WIDE:
            figures += f" {plain(node.threads, 4):>4} threads" if node.threads > 1 else " " * 13
        room = width - len(figures) - 1
        head = head[: room - len(count) - _SHORTEST_TITLE]  # of one that is nested deeply
        title = plain(_title(node.process), room - len(head) - len(count))
        lines.append(f"{left(head + title + count, room)} {figures}".rstrip())
        _render(node.children, indent + ("" if top else "  " if last else "│ "), lines, width, top=False)


def _seconds(seconds: float) -> str:
    return plain(render_seconds(seconds), 11) if seconds else "0 s"
