"""Decides UpdateFeatures requests. If one update of a request is refused, no update is made, and the reply has the
error of the refused update."""

from __future__ import annotations

from enum import IntEnum

from penstock.metadata.decision import Decision
from penstock.metadata.features import DEPENDENCIES, METADATA_CHANGED_AT, SUPPORTED_FEATURES
from penstock.metadata.image import KRAFT_VERSION, METADATA_VERSION, MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_57_update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from penstock.protocol.persisted.metadata.feature_level_record import FeatureLevelRecord


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    image: MetadataImage, request: UpdateFeaturesRequest, controller_id: int
) -> Decision[UpdateFeaturesResponse]:
    levels = dict(image.features)
    records: list[FeatureLevelRecord] = []
    try:
        for update in request.feature_updates:
            _check(image, levels, update, controller_id)
            if levels.get(update.feature, 0) != update.max_version_level:
                levels[update.feature] = update.max_version_level
                records.append(FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level))
        _check_dependencies(levels)
    except KafkaError as error:
        message = f"No feature was changed. {error.message}"
        return Decision([], UpdateFeaturesResponse(error_code=error.code, error_message=message))
    results = [UpdatableFeatureResult(feature=update.feature, error_message=None) for update in request.feature_updates]
    reply = UpdateFeaturesResponse(error_message=None, results=results)
    return Decision([] if request.validate_only else records, reply)


def _refuse(update: FeatureUpdateKey, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"{update.feature} can't be set to level {update.max_version_level}. {why}",
    )


def _check(image: MetadataImage, levels: dict[str, int], update: FeatureUpdateKey, controller_id: int) -> None:
    if update.upgrade_type not in UpgradeType.__members__.values():
        raise _refuse(
            update,
            f"{update.upgrade_type} is not an upgrade type: use 1 (upgrade), 2 (safe downgrade) or 3 (unsafe "
            "downgrade).",
        )
    wanted, name = update.max_version_level, update.feature
    if wanted < 0:
        raise _refuse(update, "The level is negative: give 0 or more.")
    _check_supported(update, SUPPORTED_FEATURES.get(name), f"Controller {controller_id}")
    for broker in image.brokers.values():
        _check_supported(update, broker.features.get(name), f"Broker {broker.broker_id}")
    for controller in image.controllers.values():
        _check_supported(update, controller.features.get(name), f"Controller {controller.controller_id}")
    current = levels.get(name, 0)
    if wanted >= current:
        if name == KRAFT_VERSION and wanted != current:
            raise _refuse(update, "Penstock can't change kraft.version of a running cluster yet: keep the level.")
        return
    if update.upgrade_type == UpgradeType.UPGRADE:
        raise _refuse(
            update,
            f"The feature is at {current}: request a safe or an unsafe downgrade to lower it.",
        )
    if name == KRAFT_VERSION:
        raise _refuse(update, "kraft.version can't be lowered: keep the level.")
    if name == METADATA_VERSION:
        _check_metadata_downgrade(update, current)


def _check_supported(update: FeatureUpdateKey, supported: tuple[int, int] | None, who: str) -> None:
    if supported is None:
        raise _refuse(update, f"{who} doesn't support this feature: upgrade the node first.")
    low, high = supported
    if not low <= update.max_version_level <= high:
        raise _refuse(update, f"{who} supports levels {low} to {high}: give one of these levels.")


def _check_metadata_downgrade(update: FeatureUpdateKey, current: int) -> None:
    """Raises KafkaError if a downgrade of metadata.version crosses a level that changed the format of records. Penstock
    does not rewrite the log for an older release."""
    wanted = update.max_version_level
    if not any(wanted < level <= current for level in METADATA_CHANGED_AT):
        return
    why = (
        "The older level can't express all metadata, and some could be lost: keep the level."
        if update.upgrade_type == UpgradeType.SAFE_DOWNGRADE
        else "Penstock doesn't rewrite metadata for an older level: keep the level."
    )
    raise KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"metadata.version can't go back from {current} to {wanted}. {why}"
    )


def _check_dependencies(levels: dict[str, int]) -> None:
    for (name, level), (needed, least) in DEPENDENCIES.items():
        if levels.get(name, 0) >= level and levels.get(needed, 0) < least:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{name}={levels[name]} needs {needed} at {least} or higher, not at {levels.get(needed, 0)}.",
            )
