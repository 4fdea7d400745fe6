"""Lists the features of Kafka 4.3: their levels, the requirements of each level, and the defaults of each release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.metadata.image import KRAFT_VERSION, METADATA_VERSION

MIN_METADATA_VERSION = 7
MAX_METADATA_VERSION = 30

# Levels with which this node can run, as it registers them.
SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    METADATA_VERSION: (MIN_METADATA_VERSION, MAX_METADATA_VERSION),
    KRAFT_VERSION: (0, 1),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}

# Level of each metadata.version name, oldest first.
METADATA_VERSIONS: Mapping[str, int] = {
    "3.3-IV3": 7,
    "3.4-IV0": 8,
    "3.5-IV0": 9,
    "3.5-IV1": 10,
    "3.5-IV2": 11,
    "3.6-IV0": 12,
    "3.6-IV1": 13,
    "3.6-IV2": 14,
    "3.7-IV0": 15,
    "3.7-IV1": 16,
    "3.7-IV2": 17,
    "3.7-IV3": 18,
    "3.7-IV4": 19,
    "3.8-IV0": 20,
    "3.9-IV0": 21,
    "4.0-IV0": 22,
    "4.0-IV1": 23,
    "4.0-IV2": 24,
    "4.0-IV3": 25,
    "4.1-IV0": 26,
    "4.1-IV1": 27,
    "4.2-IV0": 28,
    "4.2-IV1": 29,
    "4.3-IV0": 30,
}

# Levels whose records differ from the level before: a downgrade past one of them would lose metadata.
METADATA_CHANGED_AT = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30})


class _Since(NamedTuple):
    metadata_version: int
    level: int


# The metadata.version from which on a feature's level is the default of a new cluster.
_DEFAULTS: Mapping[str, tuple[_Since, ...]] = {
    KRAFT_VERSION: (_Since(21, 1),),
    "transaction.version": (_Since(24, 2),),
    "group.version": (_Since(22, 1),),
    "eligible.leader.replicas.version": (_Since(26, 1),),
    "share.version": (_Since(28, 1),),
    "streams.version": (_Since(29, 1),),
}

# Requirements of a level: (feature, level) → (needed feature, its least level).
DEPENDENCIES: Mapping[tuple[str, int], tuple[str, int]] = {
    ("eligible.leader.replicas.version", 1): (METADATA_VERSION, 23),
}


def metadata_version_level(name: str) -> int | None:
    """Returns the level of a name such as "4.3-IV0"; for a release such as "4.3", its last level; None if unknown."""
    if name in METADATA_VERSIONS:
        return METADATA_VERSIONS[name]
    levels = [level for full, level in METADATA_VERSIONS.items() if full.partition("-")[0] == name]
    return max(levels, default=None)


def metadata_version_name(level: int) -> str:
    return next((name for name, number in METADATA_VERSIONS.items() if number == level), str(level))


def default_features(metadata_version: int) -> dict[str, int]:
    """Returns the features of a cluster formatted for this metadata.version; features at level 0 are left out."""
    features = {METADATA_VERSION: metadata_version}
    for name, steps in _DEFAULTS.items():
        levels = [step.level for step in steps if metadata_version >= step.metadata_version]
        if levels:
            features[name] = max(levels)
    return features
