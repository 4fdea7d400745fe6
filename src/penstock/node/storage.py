"""Formats storage as `kafka-storage format` does, and reads it again for `storage info`.

Each log directory gets `bootstrap.checkpoint` and `meta.properties`; the metadata directory also gets the snapshot that
records the first voters. `meta.properties` is written last: if it exists, the directory is completely formatted.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.controlplane.metadata_storage import DIRECTORY, StorageError, bootstrap_records
from penstock.disk.api import make_lasting
from penstock.log.checkpoints import META_PROPERTIES_FILE, parse_properties, render_properties
from penstock.metadata.checkpoint import BOOTSTRAP_FILE, checkpoint_name, write_checkpoint
from penstock.metadata.controller.scram import credential_record
from penstock.metadata.features import (
    DEPENDENCIES,
    MAX_METADATA_VERSION,
    SUPPORTED_FEATURES,
    default_features,
    metadata_version_level,
    metadata_version_name,
)
from penstock.metadata.image import KRAFT_VERSION, METADATA_VERSION, RESERVED_DIRECTORIES, is_reserved
from penstock.metadata.names import random_uuid
from penstock.metadata.snapshot import acl_record
from penstock.metadata.voters import Voter
from penstock.protocol.uuid import uuid_from_str, uuid_to_str

__all__ = [
    "FormatPlan",
    "Formatted",
    "MetaProperties",
    "StorageError",
    "StorageInfo",
    "check_formatted",
    "features_of",
    "format_storage",
    "read_meta_properties",
    "storage_info",
]

if TYPE_CHECKING:
    from random import Random

    from penstock.disk.api import Disk
    from penstock.metadata.image import AclImage
    from penstock.security.scram_arguments import ScramUser

#: Kafka's first metadata.version with SCRAM credentials, 3.5-IV2.
SCRAM_SINCE = 11


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: bytes | None
    version: int = 1

    def to_bytes(self) -> bytes:
        values = {"version": str(self.version), "cluster.id": self.cluster_id, "node.id": str(self.node_id)}
        if self.directory_id is not None:
            values["directory.id"] = uuid_to_str(self.directory_id)
        return render_properties(values)


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """Holds the directories to format, and the values to write to them."""

    directories: Sequence[str]
    node_id: int
    cluster_id: str | None = None  # default: a random one
    metadata_directory: str | None = None  # default: the first directory
    release_version: str | None = None  # default: the latest
    features: Mapping[str, int] = field(default_factory=dict)
    controller_endpoints: tuple[tuple[str, str, int], ...] = ()  # listener name, host, port
    static_voters: bool = False  # every node's properties list the voters
    initial_controllers: tuple[Voter, ...] = ()  # default: this node alone
    joins: bool = False  # a node that joins an existing quorum records no voters
    ignore_formatted: bool = False
    users: tuple[ScramUser, ...] = ()  # SCRAM users that the new cluster has from its start
    acls: tuple[AclImage, ...] = ()  # and its first ACLs


@dataclass(frozen=True, slots=True)
class Formatted:
    cluster_id: str
    metadata_version: str
    directories: tuple[str, ...]  # the newly formatted directories


@dataclass(frozen=True, slots=True)
class StorageInfo:
    directories: tuple[str, ...]
    properties: Mapping[str, MetaProperties]  # by formatted directory
    problems: tuple[str, ...]


def read_meta_properties(disk: Disk, directory: str) -> MetaProperties | None:
    """Returns the contents of a directory's meta.properties; None if the directory isn't formatted.

    Raises StorageError if the file can't be used.
    """
    path = f"{directory}/{META_PROPERTIES_FILE}"
    if not disk.exists(path):
        return None
    values = parse_properties(disk.read_bytes(path))
    version = values.get("version", "")
    try:
        if version == "1":
            return MetaProperties(
                values["cluster.id"],
                int(values["node.id"]),
                uuid_from_str(values["directory.id"]) if "directory.id" in values else None,
            )
    except (KeyError, ValueError) as error:
        raise StorageError(
            f"{path} can't be used ({error!r}): restore the file or format the directory again."
        ) from None
    raise StorageError(
        f"{path} has version {version or 'none'}, from a ZooKeeper cluster: migrate the cluster to KRaft first."
    )


def check_formatted(disk: Disk, directories: Sequence[str]) -> None:
    """Raises StorageError for an unformatted directory, such as the empty mount point of a missing disk.

    Ignores an unreadable directory: the node takes it offline and runs with the other directories.
    """
    for path in directories:
        try:
            disk.read_bytes(f"{path}/{META_PROPERTIES_FILE}")
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise StorageError(
                    f"{path} is not formatted, but other directories of this node are: mount its disk if the disk is "
                    "missing; for a new disk, run `penstock storage format --ignore-formatted` first."
                ) from None


def features_of(plan: FormatPlan) -> dict[str, int]:
    """Returns the finalized features of a new cluster: the defaults of the release, except for the levels that
    the plan sets."""
    level: int | None = MAX_METADATA_VERSION
    if plan.release_version is not None:
        level = metadata_version_level(plan.release_version)
        if level is None:
            raise StorageError(f"Release version {plan.release_version} is unknown: name one from 3.3-IV3 to 4.3.")
    assert level is not None
    features = default_features(level)
    for name, wanted in plan.features.items():
        if name not in SUPPORTED_FEATURES or name == METADATA_VERSION:
            others = ", ".join(sorted(SUPPORTED_FEATURES.keys() - {METADATA_VERSION}))
            raise StorageError(f"There is no feature {name}: use {others}.")
        low, high = SUPPORTED_FEATURES[name]
        if not low <= wanted <= high:
            raise StorageError(f"{name} has no level {wanted}: give a level from {low} to {high}.")
        features[name] = wanted
    for (name, at_level), (needed, least) in DEPENDENCIES.items():
        if features.get(name, 0) >= at_level and features.get(needed, 0) < least:
            raise StorageError(
                f"{name}={features[name]} needs {needed} at level {least} or higher: give this level too."
            )
    return features


def format_storage(disk: Disk, plan: FormatPlan, *, random: Random, now_ms: int) -> Formatted:
    """Formats the unformatted directories. Checks all directories before it writes to any of them."""
    if not plan.directories:
        raise StorageError("No log directory is given: set log.dirs.")
    if plan.node_id < 0:
        raise StorageError(f"node.id is {plan.node_id}: set it to 0 or more.")
    features = features_of(plan)
    if plan.users and features[METADATA_VERSION] < SCRAM_SINCE:
        raise StorageError(
            f"SCRAM users need metadata.version {metadata_version_name(SCRAM_SINCE)} or later: leave --add-scram out, "
            "or give a later --release-version."
        )
    _set_kraft_version(plan, features)
    metadata_directory = plan.metadata_directory or plan.directories[0]
    known = {path: read_meta_properties(disk, path) for path in (*plan.directories, metadata_directory)}
    cluster_id = _cluster_id(plan, known, random)
    new = [path for path, properties in known.items() if properties is None]
    taken = {one.directory_id for one in known.values() if one is not None}
    own = next((voter for voter in plan.initial_controllers if voter.node_id == plan.node_id), None)
    _check_controllers(plan)
    for path in new:
        told = own.directory_id if own is not None and path == metadata_directory else None
        directory_id = told or random_uuid(random)
        while directory_id in taken and told is None:
            directory_id = random_uuid(random)
        taken.add(directory_id)
        try:
            make_lasting(disk, path)
        except OSError as error:
            raise StorageError(
                f"{path} can't be formatted ({error.strerror or error}): repair its disk, or take it out of log.dirs."
            ) from None
        records = [
            *bootstrap_records(features),
            *(credential_record(user.name, user.mechanism, user.credential) for user in plan.users),
            *(acl_record(random_uuid(random), acl) for acl in plan.acls),
        ]
        bootstrap = b"".join(write_checkpoint(records, epoch=0, timestamp_ms=now_ms))
        disk.write_atomic(f"{path}/{BOOTSTRAP_FILE}", bootstrap)
        if path == metadata_directory and features.get(KRAFT_VERSION, 0) >= 1 and not plan.joins:
            alone = Voter(plan.node_id, directory_id, plan.controller_endpoints)
            _write_voters(disk, path, plan.initial_controllers or (alone,), features, now_ms)
        properties = MetaProperties(cluster_id, plan.node_id, directory_id)
        disk.write_atomic(f"{path}/{META_PROPERTIES_FILE}", properties.to_bytes())
    return Formatted(cluster_id, metadata_version_name(features[METADATA_VERSION]), tuple(new))


def _set_kraft_version(plan: FormatPlan, features: dict[str, int]) -> None:
    """Sets kraft.version: 0 if the properties list the voters, 1 if the metadata log lists them.

    The release version that the user chose does not matter here.
    """
    level = 0 if plan.static_voters else 1
    if plan.features.get(KRAFT_VERSION, level) != level:
        remedy = "is set: leave the feature out, or set controller.quorum.bootstrap.servers in its place"
        if level:
            remedy = "is not set: leave the feature out, or set the property to the voters of this cluster"
        raise StorageError(f"kraft.version must be {level}, because controller.quorum.voters {remedy}.")
    features[KRAFT_VERSION] = level


def _cluster_id(plan: FormatPlan, known: Mapping[str, MetaProperties | None], random: Random) -> str:
    cluster_id = plan.cluster_id
    for path, properties in known.items():
        if properties is None:
            continue
        if not plan.ignore_formatted:
            raise StorageError(
                f"{path} was already formatted: add --ignore-formatted to keep it and to format the other directories."
            )
        if cluster_id not in (None, properties.cluster_id):
            raise StorageError(
                f"{path} belongs to cluster {properties.cluster_id}, not {cluster_id}: use another directory."
            )
        if properties.node_id != plan.node_id:
            raise StorageError(
                f"{path} belongs to node {properties.node_id}, not {plan.node_id}: use another directory or node.id."
            )
        cluster_id = properties.cluster_id
    return uuid_to_str(random_uuid(random)) if cluster_id is None else cluster_id


def _check_controllers(plan: FormatPlan) -> None:
    """Raises StorageError if the initial controllers can't form a quorum."""
    ids = [voter.node_id for voter in plan.initial_controllers]
    if len(set(ids)) < len(ids):
        raise StorageError(
            f"The initial controllers name a node twice ({', '.join(map(str, ids))}): name each node once."
        )
    reserved = next((voter for voter in plan.initial_controllers if is_reserved(voter.directory_id)), None)
    if reserved is not None:
        raise StorageError(
            f"The directory id {uuid_to_str(reserved.directory_id)} of node {reserved.node_id} is one of the first "
            f"{RESERVED_DIRECTORIES}, which are reserved: take one from `penstock storage random-uuid`."
        )
    if plan.initial_controllers and plan.joins:
        raise StorageError("A node that joins an existing quorum can't have initial controllers: leave them out.")


def _write_voters(disk: Disk, path: str, voters: tuple[Voter, ...], features: Mapping[str, int], now_ms: int) -> None:
    directory = f"{path}/{DIRECTORY}"
    disk.mkdir(directory)
    snapshot = write_checkpoint(
        (),
        epoch=0,
        timestamp_ms=now_ms,
        last_contained_timestamp_ms=now_ms,
        kraft_version=features[KRAFT_VERSION],
        voters=voters,
    )
    disk.write_atomic(f"{directory}/{checkpoint_name(0, 0)}", b"".join(snapshot))


def storage_info(disk: Disk, directories: Sequence[str]) -> StorageInfo:
    """Returns the contents of the log directories and every problem found in them, for `storage info`."""
    properties: dict[str, MetaProperties] = {}
    problems: list[str] = []
    found: list[str] = []
    for path in directories:
        if not disk.exists(path):
            problems.append(f"{path} does not exist: run `penstock storage format` first.")
            continue
        if not disk.is_dir(path):
            problems.append(f"{path} is not a directory: name a directory.")
            continue
        found.append(path)
        try:
            read = read_meta_properties(disk, path)
        except StorageError as error:
            problems.append(str(error))
            continue
        if read is None:
            problems.append(f"{path} is not formatted: run `penstock storage format` first.")
        else:
            properties[path] = read
    problems += _conflicts(properties)
    return StorageInfo(tuple(found), properties, tuple(problems))


def _conflicts(properties: Mapping[str, MetaProperties]) -> list[str]:
    problems = []
    clusters = sorted({one.cluster_id for one in properties.values()})
    nodes = sorted({one.node_id for one in properties.values()})
    if len(clusters) > 1:
        problems.append(f"The directories belong to different clusters ({', '.join(clusters)}): use one cluster's.")
    if len(nodes) > 1:
        problems.append(f"The directories belong to different nodes ({', '.join(map(str, nodes))}): use one node's.")
    ids = [one.directory_id for one in properties.values() if one.directory_id is not None]
    if len(set(ids)) < len(ids):
        problems.append("Two directories have the same directory.id: remove the copy.")
    return problems
