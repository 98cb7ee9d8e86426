"""The agent's settings, merged from the settings files."""

from __future__ import annotations

from typing import List

from joblens.collectors.table import COLLECTORS
from joblens.core.config import Settings, parse_settings
from joblens.core.config_files import Layer, merge

KNOWN = {collector.name: collector.options for collector in COLLECTORS}


def load_agent(layers: List[Layer]) -> Settings:
    """Merge the files. Each is validated on its own first, so that errors name its path."""
    for layer in layers:
        parse_settings(layer.values, layer.path, KNOWN)
    return parse_settings(merge(layers), layers[-1].path if layers else "", KNOWN)
