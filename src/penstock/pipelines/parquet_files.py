"""Merges small Parquet files of a table into large files; readers see the same rows throughout.

The log of Spark's file sink (`_spark_metadata`) lists the files of a table, and Spark reads only the files in it. Every
tenth batch the log gets a file with all entries so far (`9.compact`, `19.compact`, …). A merge takes the data files
that the newest `.compact` file lists, writes larger files, and then replaces that `.compact` file atomically. No query
may write to the table during a merge, because a running query would continue from the log as it was before the merge.

During a merge, a plan is kept beside the data, so that after a crash either the old or the new files are removed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any
from uuid import uuid4

LOG = "_spark_metadata"
PLAN = "_penstock_compaction.json"
ASIDE = "_compacting-"
VERSION = "v1"
COMPACT = ".compact"
#: Files below the first size are merged into files of about the second size.
SMALL_BYTES = 64 * 1024 * 1024
TARGET_BYTES = 128 * 1024 * 1024

Entry = dict[str, Any]
"""An entry of the log: a file's path, its size, and Spark's other fields."""


def compact(spark: Any, path: str, *, least: int) -> int:
    """Merges small files if there are at least `least` of them. Returns how many small files were merged."""
    files = Files(spark, path)
    _recover(files)
    files.tidy()
    name = files.newest_log()
    if name is None:
        return 0
    entries = parse(files.read(name))
    groups = small_groups(entries)
    count = sum(len(group) for group in groups)
    if count < max(least, 2):
        return 0
    aside = f"{ASIDE}{uuid4().hex}"
    made: list[Entry] = []
    for number, group in enumerate(groups):
        _merge(spark, group, f"{path.rstrip('/')}/{aside}/{number}")
        made += files.described(f"{aside}/{number}", _directory(group[0]))
    old = [str(each["path"]) for group in groups for each in group]
    files.write(PLAN, json.dumps({"log": name, "old": old, "new": [each["path"] for each in made]}))
    files.move_in(aside, made)
    gone = set(old)
    files.replace(name, render([*(each for each in entries if each["path"] not in gone), *made]))
    _recover(files)
    files.tidy()
    return count


def parse(text: str) -> list[Entry]:
    version, *lines = text.splitlines()
    if version != VERSION:
        raise ValueError(
            f"The log of the table's files has the unknown version {version}: use the newer Spark that wrote it."
        )
    return [json.loads(line) for line in lines if line]


def render(entries: list[Entry]) -> str:
    return "\n".join([VERSION, *(json.dumps(each, separators=(",", ":")) for each in entries)])


def small_groups(entries: list[Entry]) -> list[list[Entry]]:
    """Returns the small files, grouped by directory. A directory with only one small file is left out."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for each in entries:
        if each["size"] < SMALL_BYTES and not each["isDir"]:
            found[_directory(each)].append(each)
    return [group for _, group in sorted(found.items()) if len(group) > 1]


def _directory(entry: Entry) -> str:
    return str(entry["path"]).rpartition("/")[0]


def _merge(spark: Any, group: list[Entry], target: str) -> None:
    count = -(-sum(each["size"] for each in group) // TARGET_BYTES)
    paths = [spark._jvm.org.apache.hadoop.fs.Path(spark._jvm.java.net.URI(each["path"])).toString() for each in group]
    # Files are read by name, so that the partition values in the names of directories do not become columns.
    rows = spark.read.option("mergeSchema", "true").parquet(*paths)
    rows.coalesce(max(1, count)).write.mode("overwrite").parquet(target)


def _recover(files: Files) -> None:
    """Completes an interrupted merge.

    Removes the old files if the log already lists the new files; otherwise removes the new files.
    """
    if not files.exists(PLAN):
        return
    plan = json.loads(files.read(PLAN))
    listed = {each["path"] for each in parse(files.read(plan["log"]))}
    decided = set(plan["new"]) <= listed
    for address in plan["old"] if decided else plan["new"]:
        files.delete(address)
    files.delete(files.address(PLAN))


class Files:
    """Accesses the table's directory through Hadoop, at any address that Spark can write to."""

    def __init__(self, spark: Any, path: str) -> None:
        self._jvm = spark._jvm
        self._gateway = spark._sc._gateway
        self._conf = spark._jsc.hadoopConfiguration()
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._system = self._root.getFileSystem(self._conf)
        self._root = self._system.makeQualified(self._root)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    def address(self, name: str) -> str:
        return str(self._path(name).toUri().toString())

    def newest_log(self) -> str | None:
        """Returns the log's newest `.compact` file, which also lists all earlier entries; None if there is no such
        file."""
        if not self._system.exists(self._path(LOG)):
            return None
        names = [str(each.getPath().getName()) for each in self._system.listStatus(self._path(LOG))]
        batches = [int(name.removesuffix(COMPACT)) for name in names if name.endswith(COMPACT) and name[0].isdigit()]
        return f"{LOG}/{max(batches)}{COMPACT}" if batches else None

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._path(name)))

    def read(self, name: str) -> str:
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        data = text.encode()
        stream = self._system.create(self._path(name), True)
        try:
            stream.write(data, 0, len(data))
        finally:
            stream.close()

    def replace(self, name: str, text: str) -> None:
        """Replaces a file atomically: readers see the old text or the new text."""
        place, _, last = name.rpartition("/")
        aside = f"{place}/.{last}.{uuid4().hex}.tmp"
        self.write(aside, text)
        options = self._jvm.org.apache.hadoop.fs.Options
        how = self._gateway.new_array(options.Rename, 1)
        how[0] = options.Rename.OVERWRITE
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), self._conf)
        context.rename(self._path(aside), self._path(name), how)

    def described(self, place: str, directory: str) -> list[Entry]:
        """Returns log entries for the data files in the directory `place`.

        The entries have paths in `directory`, because the caller then moves the files there.
        """
        return [
            {
                "path": f"{directory}/{each.getPath().getName()}",
                "size": each.getLen(),
                "isDir": False,
                "modificationTime": each.getModificationTime(),
                "blockReplication": each.getReplication(),
                "blockSize": each.getBlockSize(),
                "action": "add",
            }
            for each in self._system.listStatus(self._path(place))
            if str(each.getPath().getName()).startswith("part-")
        ]

    def move_in(self, place: str, entries: list[Entry]) -> None:
        targets = {str(each["path"]).rpartition("/")[2]: str(each["path"]) for each in entries}
        for group in self._system.listStatus(self._path(place)):
            for each in self._system.listStatus(group.getPath()):
                address = targets.get(str(each.getPath().getName()))
                if address is not None and not self._system.rename(each.getPath(), self._at(address)):
                    raise OSError(
                        f"{each.getPath()} can't be moved to {address}: check the permissions of the table's directory"
                    )

    def tidy(self) -> None:
        """Removes temporary files of this run, or of a run that was killed."""
        found = self._system.listStatus(self._root) if self._system.exists(self._root) else []
        for each in found:
            if str(each.getPath().getName()).startswith(ASIDE):
                self._system.delete(each.getPath(), True)

    def delete(self, address: str) -> None:
        self._system.delete(self._at(address), True)

    def _at(self, address: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(address))
