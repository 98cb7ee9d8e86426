"""DuckDB: only its engine. The rest of the package takes 0.1 s and 12 MB to load, as long as most queries."""

from __future__ import annotations

try:
    import _duckdb as duckdb
except ImportError:  # before DuckDB 1.4
    import duckdb  # type: ignore[no-redef]

__all__ = ["duckdb"]
