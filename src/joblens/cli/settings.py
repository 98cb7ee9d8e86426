"""The settings of the agent from the files that count."""

from __future__ import annotations

from typing import List

from joblens.collectors.table import COLLECTORS
from joblens.core.config import Settings, parse_settings
from joblens.core.config_files import Layer, merge

KNOWN = {collector.name: collector.options for collector in COLLECTORS}


def load_agent(layers: List[Layer]) -> Settings:
    """Each file is checked on its own first, so that what is wrong is told with its path."""
    for layer in layers:
        parse_settings(layer.values, layer.path, KNOWN)
    return parse_settings(merge(layers), layers[-1].path if layers else "", KNOWN)
