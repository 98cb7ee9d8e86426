"""Usage on each node of a job, and the steps that failed."""

from __future__ import annotations

from collections.abc import Iterable

from joblens.core.units import render_bytes, render_exit, render_seconds
from joblens.record.job import Step
from joblens.record.report import JobRecord, NodeUse
from joblens.reports.style import WIDTH, Style
from joblens.reports.width import display_width, left, plain
from joblens.store.catalog.listing import name_nodes

_MOST_NODES = 6
_BUSIEST, _LEAST = 3, 2  # of more nodes than that
_STEP_WORD, _SHORTEST_NAME = 22, 4  # columns
_MOST_STEPS = 4
_NAME = 11
_FAILURES = ("FAILED", "OUT_OF_MEMORY", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE")


def render_nodes(record: JobRecord, style: Style) -> list[str]:
    """One line each, of many the extremes; nothing for a job on one node."""
    nodes = record.nodes
    if len(nodes) < 2:
        return []
    cores = (record.asked.cores or 0.0) / len(nodes)
    second, third = (13, 11) if style.width >= WIDTH else (11, 10)
    lines = [style("Nodes", "bold") + f"{'memory':>{_NAME + 5}}{'cores':>{second}}{'peak':>{third}}"]
    if len(nodes) <= _MOST_NODES:
        return lines + [_node_line(node, cores, style) for node in nodes]
    ordered = sorted(nodes, key=lambda node: -1.0 if node.cores_mean is None else -node.cores_mean)
    known = [node for node in ordered if node.cores_mean is not None]
    dark = [node for node in ordered if node.cores_mean is None]
    ends, middle = [*known[:_BUSIEST], *known[-_LEAST:]], known[_BUSIEST:-_LEAST]
    if not middle:
        ends = known
    lines += [_node_line(node, cores, style) for node in ends[:_BUSIEST]]
    lines += [_node_line(_mean_node(middle), cores, style)] if middle else []
    lines += [_node_line(node, cores, style) for node in ends[_BUSIEST:]]
    return lines + ([f" {len(dark)} without data"] if dark else [])


def _mean_node(nodes: list[NodeUse]) -> NodeUse:
    """Summarise the nodes in between: the mean of each, and the highest peaks."""
    means = [node.cores_mean or 0.0 for node in nodes]
    return NodeUse(
        f"{len(nodes)} others" if len(nodes) > 1 else nodes[0].node,
        cores_mean=sum(means) / len(means),
        cores_peak=_most(node.cores_peak for node in nodes),
        memory_peak_bytes=_most(node.memory_peak_bytes for node in nodes),
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _node_line(node: NodeUse, cores: float, style: Style) -> str:
    name = plain(node.node)
    if display_width(name) > _NAME:  # names of nodes differ in their end
        name = "…" + name[-(_NAME - 1) :]
    name = plain(name, _NAME)
    if node.cores_mean is None:
        return f" {left(name, _NAME)} {style('no data', 'dim')}"
    memory = "" if node.memory_peak_bytes is None else render_bytes(node.memory_peak_bytes)
    peak = "" if node.cores_peak is None else f"{node.cores_peak:.1f}"
    second, third = (13, 11) if style.width >= WIDTH else (11, 10)
    mean = plain(format(node.cores_mean, ".1f"), second - 1)
    line = f" {left(name, _NAME)} {plain(memory, 8):>8}{mean:>{second}}{plain(peak, third - 1):>{third}}"
    if not cores:
        return line
    part = node.cores_mean / cores
    colour = "green" if part >= 0.7 else "yellow" if part >= 0.3 else "red"
    blanks = " " * (3 if style.width >= WIDTH else 1)
    return line + blanks + style.bar(part, colour, style.width - 1 - display_width(line) - len(blanks))


def render_state(state: str, code: int | None, signal: int | None) -> str:
    if state != "FAILED":
        return state
    return f"{state} ({render_exit(code, signal) or '?'})"


def render_steps(record: JobRecord, style: Style) -> list[str]:
    """Render failed steps, except for the script itself, whose end is the job's."""
    job, steps = record.job, record.steps
    failed = [
        step
        for step in steps
        if step.state in _FAILURES and not (step.id == "batch" and step.state == job.state)
    ]
    if not failed:
        return []
    lines = [style("Steps", "bold") + f"        {len(failed)} of {len(steps)} failed"]
    lines += [_step_line(step, job.shown_id, style.width) for step in failed[:_MOST_STEPS]]
    more = len(failed) - _MOST_STEPS
    return lines + ([f" and {more} more, see --json"] if more > 0 else [])


def _step_line(step: Step, job: str, width: int) -> str:
    """Its name gives way first, then where it was and how long it took."""
    start, end = step.start, step.end
    words = [f"{job}.{step.id}", render_state(step.state, step.exit_code, step.signal)]
    if start is not None and end is not None and end >= start:
        words.append(f"after {render_seconds(end - start)}")
    words += [f"on {name_nodes(step.nodes)}"] if step.nodes else []
    words = [plain(word, _STEP_WORD) for word in words]
    while len(words) > 2 and _room(words, width) < _SHORTEST_NAME:
        words.pop()
    words.insert(1, plain(step.name or "", min(max(_room(words, width), 0), _STEP_WORD)))
    line = " " + "  ".join(filter(None, words))
    return line if display_width(line) < width else " " + plain(line, width - 2)


def _room(words: list[str], width: int) -> int:
    """For one word more."""
    return width - 2 - sum(display_width(word) + 2 for word in words if word)
