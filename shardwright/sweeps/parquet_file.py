"""`parquet_bytes`: a table as Parquet; equal tables make equal bytes under one pyarrow."""

from __future__ import annotations

from typing import Any

from planner.batch.result_store import Table
from profiles.extras import need_package


def need_pyarrow() -> str:
    """The version of pyarrow; raises InputError, before any work, if it is not installed."""
    return str(_pyarrow().__version__)


def parquet_bytes(table: Table) -> bytes:
    """The table as one Parquet file: 64-bit integers and floats, UTF-8 texts, null for missing
    values.

    Format 2.6, one row group, Zstandard. The bytes depend on the version of pyarrow, which is in
    the footer, but not on time or place of writing.
    """
    pyarrow = _pyarrow()
    import pyarrow.parquet as parquet

    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in table.columns.items()])
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    arrays = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(
        pyarrow.Table.from_arrays(arrays, schema=schema),
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        use_dictionary=True,
        write_statistics=True,
        row_group_size=max(1, len(table.rows)),
        store_schema=False,
    )
    return bytes(sink.getvalue())


def _pyarrow() -> Any:
    otherwise = "use --no-parquet; results.sqlite and summary.csv contain the same rows"
    need_package("pyarrow", "results.parquet", otherwise=otherwise)
    import pyarrow

    return pyarrow
