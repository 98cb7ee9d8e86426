"""Text columns as ENUMs while files are merged: the same rows in the same order, found as quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joblens.store.lake import compact, lake
from joblens.store.lake.compact import compact_folder
from joblens.store.lake.lake import Lake, as_table, literal

ROWS, FILES, MANY = 3000, 4, 2000
CELLS = """SELECT make_timestamp_ns(i * 1000000000) AS time, 'fox' AS cluster, '' AS jobid,
    'n' || (i // 100) AS node, if(i % 7 = 0, NULL, ['eth0', '', 'é''"~', 'lo'][1 + i % 4]) AS device,
    'cmd ' || (i % $many) AS command, NULL::VARCHAR AS nothing, if(i % 2 = 0, NULL, '7') AS interface,
    i AS value FROM range($first, $last) t(i)"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four files, each of which has nodes of its own and all devices."""
    monkeypatch.setattr(compact, "_LEAST_ROWS", 100)
    monkeypatch.setattr(compact, "_MOST_TEXTS", MANY // 2)
    monkeypatch.setattr(lake, "_GROUP_VALUES", 1)  # so that row groups are as small as can be
    found = tmp_path / "set=net" / "date=2026-11-17"
    found.mkdir(parents=True)
    made = Lake(tmp_path)
    for number in range(FILES):
        path = found / f"hub~ab.{number + 1}-{number + 1}.parquet"
        known = {"first": number * ROWS, "last": (number + 1) * ROWS, "many": MANY}
        cells = CELLS
        for name, value in known.items():
            cells = cells.replace(f"${name}", str(value))
        made.copy(f"({cells})", (), path)
    return found


def merged(folder: Path) -> tuple[Lake, Path]:
    made = Lake(folder.parents[1])
    assert compact_folder(made, folder, set) == FILES
    (path,) = made.files("net")
    return made, path


def rows_of(made: Lake, paths: list[Path], order: str = "") -> list[tuple[Any, ...]]:
    return made.connection.execute(f"SELECT * FROM {as_table(paths)}{order}").fetchall()


def test_rows_and_their_order(folder: Path) -> None:
    """As if the text itself had been sorted, though columns with one text are not sorted by."""
    order = " ORDER BY cluster, jobid, node, device, interface, time"
    before = rows_of(Lake(folder.parents[1]), sorted(folder.glob("*.parquet")), order)
    made, path = merged(folder)
    assert rows_of(made, [path]) == before
    assert set(made.schema([path]).values()) == {"TIMESTAMP_NS", "VARCHAR", "BIGINT"}


def test_row_groups_are_found_by_their_statistics(folder: Path) -> None:
    """Of nodes each row group says which it has, as readers choose by them."""
    made, path = merged(folder)
    of_nodes = f"FROM parquet_metadata({literal(path)}) WHERE path_in_schema = 'node'"
    bounds = made.connection.execute(f"SELECT stats_min_value, stats_max_value {of_nodes}").fetchall()
    assert len(bounds) > 4
    assert bounds == sorted(bounds)
    assert len({least for least, _ in bounds}) == len(bounds)


def test_which_columns_stay_enums(folder: Path) -> None:
    """Those with few texts, as that is smaller: but for those that row groups are chosen by."""
    made, path = merged(folder)
    query = f"SELECT path_in_schema, encodings FROM parquet_metadata({literal(path)})"
    names = {name for name, how in made.connection.execute(query).fetchall() if "DICT" in how}
    assert {"device", "cluster", "jobid"} <= names
    assert not {"node", "command"} & names
