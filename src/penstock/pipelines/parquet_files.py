"""Small Parquet files of a table become large ones, and readers don't notice.

Which files a table has is what the log of Spark's file sink says (`_spark_metadata`): readers that are Spark go by it.
Every tenth batch that log has a file with all entries so far (`9.compact`, `19.compact`, …). Data files that the newest
of those names are put together, and then that one file is replaced, which is atomic. Only while no query writes to the
table: it would go on from what it read of the log before.

A plan is kept beside the data while this goes on, so that after a crash either the old or the new files are removed.
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
#: Smaller files are put together, into files of about the second size.
SMALL_BYTES = 64 * 1024 * 1024
TARGET_BYTES = 128 * 1024 * 1024

Entry = dict[str, Any]
"""A file in the log: path, size, and what else Spark writes there."""


def compact(spark: Any, path: str, *, least: int) -> int:
    """How many files were put together: none if there are fewer small ones than that."""
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
        raise ValueError(f"The log of the table's files is of a version {version} that is not known here.")
    return [json.loads(line) for line in lines if line]


def render(entries: list[Entry]) -> str:
    return "\n".join([VERSION, *(json.dumps(each, separators=(",", ":")) for each in entries)])


def small_groups(entries: list[Entry]) -> list[list[Entry]]:
    """Small files that lie in one directory, where there are several."""
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
    # Files only: their directories, which say what a table is partitioned by, are no columns then.
    rows = spark.read.option("mergeSchema", "true").parquet(*paths)
    rows.coalesce(max(1, count)).write.mode("overwrite").parquet(target)


def _recover(files: Files) -> None:
    """Ends what was begun: the log says whether the new files count or the old ones."""
    if not files.exists(PLAN):
        return
    plan = json.loads(files.read(PLAN))
    listed = {each["path"] for each in parse(files.read(plan["log"]))}
    decided = set(plan["new"]) <= listed
    for address in plan["old"] if decided else plan["new"]:
        files.delete(address)
    files.delete(files.address(PLAN))


class Files:
    """The table's directory, through Hadoop: wherever Spark can write."""

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
        """The newest file of the log that has all entries up to it."""
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
        """Readers see what was there, or this."""
        place, _, last = name.rpartition("/")
        aside = f"{place}/.{last}.{uuid4().hex}.tmp"
        self.write(aside, text)
        options = self._jvm.org.apache.hadoop.fs.Options
        how = self._gateway.new_array(options.Rename, 1)
        how[0] = options.Rename.OVERWRITE
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), self._conf)
        context.rename(self._path(aside), self._path(name), how)

    def described(self, place: str, directory: str) -> list[Entry]:
        """Entries for the files of a place as they will be in a directory."""
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
                    raise OSError(f"{each.getPath()} can't be moved to {address}")

    def tidy(self) -> None:
        """What was being made, now or by a run that was killed."""
        found = self._system.listStatus(self._root) if self._system.exists(self._root) else []
        for each in found:
            if str(each.getPath().getName()).startswith(ASIDE):
                self._system.delete(each.getPath(), True)

    def delete(self, address: str) -> None:
        self._system.delete(self._at(address), True)

    def _at(self, address: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(address))
