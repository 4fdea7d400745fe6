"""Spark looks for `DefaultSource` in modules called `pyspark_*`: this one makes `format("penstock")` known to it."""

from penstock.spark.source import DefaultSource

__all__ = ["DefaultSource"]
