"""Makes `format("penstock")` known to Spark, which looks for `DefaultSource` in modules named `pyspark_*`."""

from penstock.spark.source import DefaultSource

__all__ = ["DefaultSource"]
