"""Opens archives: a directory, or an object store's address as Spark writes it (s3a://, gs://, hdfs://, abfss://).

Tasks read and write directly, through Arrow's file systems: bytes don't pass through the driver or Java. A file that a
task was writing when it died is ignored: in a directory it has a temporary name until it is complete, and in an object
store a piece is valid only once its `.json` exists (see `segments`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from penstock.disk.api import DIRECTORY_MODE, private
from penstock.spark.errors import SourceError

_S3 = {
    "fs.s3a.access.key": "access_key",
    "fs.s3a.secret.key": "secret_key",
    "fs.s3a.session.token": "session_token",
    "fs.s3a.endpoint": "endpoint_override",
    "fs.s3a.endpoint.region": "region",
}
_PLAIN_HTTP = "fs.s3a.connection.ssl.enabled"
#: Arrow's URI scheme for each URI scheme of Spark.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gs": "gs", "hdfs": "hdfs", "abfs": "abfs", "abfss": "abfss", "s3": "s3"}


_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*):(?://)?(.*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Holds the address of an archive and the settings for access to it. Spark sends this object to its tasks."""

    uri: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """The Hadoop settings that are supported here."""

    @property
    def _split(self) -> tuple[str, str]:
        matched = _ADDRESS.fullmatch(self.uri)
        return (matched[1], matched[2]) if matched else ("file", os.path.abspath(self.uri))

    @property
    def known(self) -> bool:
        """Returns True if this module supports the scheme of the address. Spark may support more schemes."""
        return self._split[0] in ("file", *_SCHEMES)

    def open(self) -> Store:
        """Returns the store at this address. Raises SourceError."""
        import pyarrow as pa

        scheme, path = self._split
        if not self.known:
            kinds = ", ".join(f"{each}://" for each in ("file", "s3a", "gs", "hdfs", "abfss"))
            raise SourceError(f"{self.uri} is not an address for an archive of segments: use {kinds} or a directory.")
        try:
            if scheme == "file":
                return Store(self.uri, _local(), "/" + path.strip("/"))
            if _SCHEMES[scheme] == "s3":
                return Store(self.uri, _s3(self.settings), path.strip("/"))
            from pyarrow.fs import FileSystem

            system, inside = FileSystem.from_uri(f"{_SCHEMES[scheme]}://{path}")
            return Store(self.uri, system, inside)
        except (OSError, pa.ArrowException) as problem:
            raise SourceError(f"{self.uri} can't be reached: {_said(problem)}") from problem


def place_for(spark: Any, uri: str) -> Place:
    """Returns the address with the session's Hadoop settings for access to it.

    A path is made absolute, because tasks run in other directories.
    """
    context = getattr(spark, "_sc", None)
    if not _ADDRESS.fullmatch(uri):
        return Place(os.path.abspath(uri))
    if context is None:
        return Place(uri)
    conf = context._jsc.hadoopConfiguration()
    found = {name: conf.get(name) for name in (*_S3, _PLAIN_HTTP)}
    return Place(uri, {name: str(value) for name, value in found.items() if value})


def _local() -> Any:
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


def _s3(settings: Mapping[str, str]) -> Any:
    from pyarrow.fs import S3FileSystem

    given = {ours: settings[name] for name, ours in _S3.items() if settings.get(name)}
    if settings.get(_PLAIN_HTTP, "true").lower() == "false":
        given["scheme"] = "http"
    if "://" in given.get("endpoint_override", ""):
        given["scheme"], _, given["endpoint_override"] = given["endpoint_override"].partition("://")
    return S3FileSystem(**given)


class Store:
    def __init__(self, uri: str, system: Any, root: str) -> None:
        self.uri = uri.rstrip("/")
        self._system = system
        self._root = root.rstrip("/")

    @property
    def _is_local(self) -> bool:
        return bool(self._system.type_name == "local")

    def names(self, directory: str) -> dict[str, int]:
        """Returns the size of each file in a directory, by file name; empty if the directory does not exist."""
        from pyarrow.fs import FileSelector

        with self._problems(directory, "listed"):
            found = self._system.get_file_info(FileSelector(f"{self._root}/{directory}", allow_not_found=True))
        return {each.base_name: each.size for each in found if each.is_file}

    def has(self, name: str) -> bool:
        with self._problems(name, "looked for"):
            return bool(self._system.get_file_info(f"{self._root}/{name}").is_file)

    def read(self, name: str) -> bytes:
        with self._problems(name, "read"), self._system.open_input_file(f"{self._root}/{name}") as file:
            return bytes(file.read())

    @contextmanager
    def reading(self, name: str) -> Iterator[Any]:
        with self._problems(name, "read"), self._system.open_input_file(f"{self._root}/{name}") as file:
            yield file

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """Opens a new file for writing, for a `with` block.

        On a local disk, the file gets its final name when the block ends. If the block fails, no file gets this name.
        """
        path = f"{self._root}/{name}"
        if not self._is_local:
            with self._problems(name, "written"):
                if self._system.type_name == "hdfs":
                    self._system.create_dir(path.rpartition("/")[0], recursive=True)
                with self._system.open_output_stream(path, compression=None) as stream:
                    yield stream
            return
        aside = f"{path}.{uuid4().hex}.part"
        with self._problems(name, "written"):
            os.makedirs(os.path.dirname(path), DIRECTORY_MODE, exist_ok=True)
            try:
                with open(aside, "wb", opener=private) as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(aside, path)
                _sync_directory(os.path.dirname(path))
            except BaseException:
                if os.path.exists(aside):
                    os.remove(aside)
                raise

    @contextmanager
    def _problems(self, name: str, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise SourceError(f"{self.uri}/{name} can't be {what}: {_said(problem)}") from problem


def _sync_directory(path: str) -> None:
    """Syncs a directory, so that the names of new files in it survive a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _said(problem: BaseException) -> str:
    text = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return text.splitlines()[0] if text else type(problem).__name__
