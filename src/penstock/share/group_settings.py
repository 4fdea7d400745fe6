"""Reads the settings of one share group: group configs, limited to the broker's bounds, or the broker's defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.metadata.configs.group import effective_group_configs
from penstock.share.states import ShareLimits

if TYPE_CHECKING:
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_MILLISECONDS = (86_400_000, 3_600_000, 60_000, 1000)


@dataclass(frozen=True, slots=True)
class Reset:
    """Holds the position at which a group without a start offset begins: `earliest`, `latest`, or a duration before
    now."""

    kind: str
    back_ms: int = 0


class ShareSettings(NamedTuple):
    limits: ShareLimits
    reset: Reset
    committed_only: bool
    dead_letter_topic: str = ""
    copy_dead_letters: bool = False


def share_settings(image: MetadataImage, group: str, settings: Settings) -> ShareSettings:
    values: dict[str, Any] = effective_group_configs(image, group, settings)
    dead_letter_topic = values["errors.deadletterqueue.topic.name"]
    return ShareSettings(
        ShareLimits(
            values["share.record.lock.duration.ms"],
            values["share.delivery.count.limit"],
            values["share.partition.max.record.locks"],
            values["share.renew.acknowledge.enable"],
            dead_letters=bool(dead_letter_topic),
            retry_ms=values["penstock.share.retry.backoff.ms"],
            max_retry_ms=values["penstock.share.retry.backoff.max.ms"],
        ),
        parse_reset(values["share.auto.offset.reset"]),
        values["share.isolation.level"] == "read_committed",
        dead_letter_topic,
        values["errors.deadletterqueue.copy.record.enable"],
    )


def parse_reset(text: str) -> Reset:
    kind, _, duration = text.partition(":")
    if kind != "by_duration":
        return Reset(kind)
    found = _DURATION.fullmatch(duration)
    parts = found.groups() if found is not None else ()
    return Reset(kind, int(sum(float(part or 0) * unit for part, unit in zip(parts, _MILLISECONDS))))
