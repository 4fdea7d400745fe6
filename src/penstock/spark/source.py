"""Defines the data source that Spark finds by the name `penstock`. The data source makes the readers and writers."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.spark.shipping import Shipped


class DefaultSource(Shipped, DataSource):
    """Makes readers and writers.

    Imports their modules on first use, so that a job that only reads never loads the sink.
    """

    needs = ()

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType | str:
        from penstock.spark.schema import source_schema

        return source_schema(self.options)

    def reader(self, schema: StructType) -> Any:
        from penstock.spark.batch import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> Any:
        from penstock.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from penstock.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from penstock.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
