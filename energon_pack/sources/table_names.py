"""The extensions of tables."""

import os

#: extensions of tables
TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".csv.gz", ".tsv.gz")


def kind_of_table(path: str) -> str:
    """Return the extension of a table that decides how it is read."""
    return os.path.splitext(path.lower().removesuffix(".gz"))[1]
