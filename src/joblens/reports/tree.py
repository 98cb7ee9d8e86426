"""The processes that mattered, as a tree in which like siblings stand together."""

from __future__ import annotations

from typing import Any

from joblens.units import render_bytes, render_seconds

_MOST_LINES = 12


class _Node:
    def __init__(self, process: dict[str, Any]) -> None:
        self.process = process
        self.children: list[_Node] = []
        self.count = 1
        self.cpu = float(process["cpu_seconds"])
        self.memory = int(process["memory_peak_bytes"] or 0)
        self.threads = int(process["threads"] or 0)

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
    nodes = {(process["node"], process["pid"]): _Node(process) for process in processes}
    tops: list[_Node] = []
    for (node, _), found in nodes.items():
        parent = nodes.get((node, found.process["parent"]))
        (parent.children if parent is not None and parent is not found else tops).append(found)
    lines: list[str] = []
    _render(_merged(tops), "", lines, width, top=True)
    if len(lines) > _MOST_LINES:
        left = len(lines) - _MOST_LINES + 1
        lines = [*lines[: _MOST_LINES - 1], f" … and {left} more, see --json"]
    return lines


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
    words = str(process["command"] or process["name"]).split(" ")
    return " ".join([words[0].rpartition("/")[2] or words[0], *words[1:]])


def _render(nodes: list[_Node], indent: str, lines: list[str], width: int, top: bool) -> None:
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        branch = "" if top else ("└ " if last else "├ ")
        count = f" (×{node.count})" if node.count > 1 else ""
        figures = f"{render_seconds(node.cpu):>11} CPU {render_bytes(node.memory):>9}"
        figures += f" {node.threads:>4} threads" if node.threads > 1 else " " * 13
        room = width - len(figures) - 2
        title = "".join(letter if letter.isprintable() else "?" for letter in _title(node.process))
        head = f" {indent}{branch}"
        space = room - len(head) - len(count)
        title = title if len(title) <= space else title[: max(space - 1, 1)] + "…"
        lines.append(f"{head}{title}{count}".ljust(room + 1) + figures.rstrip())
        _render(node.children, indent + ("" if top else "  " if last else "│ "), lines, width, top=False)
