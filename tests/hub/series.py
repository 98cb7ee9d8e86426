"""What sinks have stored, in one form that can be compared: series of samples, each with its labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from joblens.core.model import Sample
from joblens.store.lake.lake import Lake

Labels = tuple[tuple[str, str], ...]
Series = dict[Labels, list[tuple[int, float]]]  # milliseconds and value, in order of time


def labels_of(samples: Iterable[Sample]) -> dict[str, set[str]]:
    """Of each set, what is no number."""
    found: dict[str, set[str]] = {}
    for _, rows in samples:
        found.setdefault(rows.schema.set, {"cluster", "jobid", "node"}).update(rows.schema.labels)
    return found


def make_labels(name: str, named: Mapping[str, object]) -> Labels:
    """What is empty is not there."""
    texts = {label: str(part) for label, part in named.items() if part is not None and part != ""}
    return tuple(sorted({**texts, "__name__": name}.items()))


def of_lake(lake: Lake, labels: Mapping[str, set[str]]) -> Series:
    """Named SET_COLUMN."""
    found: Series = {}
    for set_name, names in labels.items():
        files = lake.files(set_name)
        types = lake.schema(files)
        texts = [name for name in types if name in names]
        numbers = [name for name in types if name not in names and name != "time"]
        wanted = {
            "time": "TIMESTAMP_NS",
            **dict.fromkeys(texts, "VARCHAR"),
            **dict.fromkeys(numbers, "DOUBLE"),
        }
        chosen = ", ".join(f'"{name}"' for name in (*texts, *numbers))
        query = f"SELECT epoch_ns(time) // 1000000, {chosen} FROM {{lake}} ORDER BY time"
        for at, *cells in lake.query(files, wanted, query):
            whose = dict(zip(texts, cells))
            for name, value in zip(numbers, cells[len(texts) :]):
                if value is not None:
                    found.setdefault(make_labels(f"{set_name}_{name}", whose), []).append((at, value))
    return found


def assert_equal(found: Series, wanted: Series) -> None:
    assert found.keys() == wanted.keys()
    for labels, samples in found.items():
        assert [at for at, _ in samples] == [at for at, _ in wanted[labels]], labels
        values = [value for _, value in wanted[labels]]
        assert [value for _, value in samples] == pytest.approx(values, rel=1e-12), labels
