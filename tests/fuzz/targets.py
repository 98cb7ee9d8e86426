"""The table of fuzz targets: every parser of outside data is in one of them (test_targets.py)."""

from __future__ import annotations

from . import capture, imported, machine, scheduler, serve, stored, wire

TARGETS = {
    target.name: target
    for module in (wire, machine, scheduler, stored, imported, capture, serve)
    for target in module.TARGETS
}
