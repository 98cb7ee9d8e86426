"""The agent's settings, merged from the settings files."""

from __future__ import annotations

from typing import List

from joblens.collectors.table import COLLECTORS
from joblens.core.config import Settings, parse_settings
from joblens.core.config_files import Layer, parse_layers

KNOWN = {collector.name: collector.options for collector in COLLECTORS}


def load_agent(layers: List[Layer]) -> Settings:
    return parse_layers(layers, lambda values, path: parse_settings(values, path, KNOWN))
