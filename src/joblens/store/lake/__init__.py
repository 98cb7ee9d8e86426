"""Samples as Parquet files."""
