"""UpdateFeatures as a decision: all of the updates, or none and the first reason why."""

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
        message = f"The update failed for all features since the following feature had an error: {error.message}"
        return Decision([], UpdateFeaturesResponse(error_code=error.code, error_message=message))
    results = [UpdatableFeatureResult(feature=update.feature, error_message=None) for update in request.feature_updates]
    reply = UpdateFeaturesResponse(error_message=None, results=results)
    return Decision([] if request.validate_only else records, reply)


def _refuse(update: FeatureUpdateKey, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {why}",
    )


def _check(image: MetadataImage, levels: dict[str, int], update: FeatureUpdateKey, controller_id: int) -> None:
    if update.upgrade_type not in UpgradeType.__members__.values():
        raise _refuse(update, "The controller does not support the given upgrade type.")
    wanted, name = update.max_version_level, update.feature
    if wanted < 0:
        raise _refuse(update, "A feature version cannot be less than 0.")
    _check_supported(update, SUPPORTED_FEATURES.get(name), f"Local controller {controller_id}")
    for broker in image.brokers.values():
        _check_supported(update, broker.features.get(name), f"Broker {broker.broker_id}")
    current = levels.get(name, 0)
    if wanted >= current:
        if name == KRAFT_VERSION and wanted != current:
            raise _refuse(update, "Changing the quorum's version of a running cluster is not supported yet.")
        return
    if update.upgrade_type == UpgradeType.UPGRADE:
        raise _refuse(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        )
    if name == KRAFT_VERSION:
        raise _refuse(update, "Can't downgrade the version of this feature.")
    if name == METADATA_VERSION:
        _check_metadata_downgrade(update, current)


def _check_supported(update: FeatureUpdateKey, supported: tuple[int, int] | None, who: str) -> None:
    if supported is None:
        raise _refuse(update, f"{who} does not support this feature.")
    low, high = supported
    if not low <= update.max_version_level <= high:
        raise _refuse(update, f"{who} only supports versions {low}-{high}")


def _check_metadata_downgrade(update: FeatureUpdateKey, current: int) -> None:
    """Only past levels that changed no record: rewriting the log for an older release isn't done."""
    wanted = update.max_version_level
    if not any(wanted < level <= current for level in METADATA_CHANGED_AT):
        return
    why = (
        "Refusing to perform the requested downgrade because it might delete metadata information."
        if update.upgrade_type == UpgradeType.SAFE_DOWNGRADE
        else "Unsafe metadata downgrade is not supported in this version."
    )
    raise KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Unsupported metadata.version downgrade from {current} to {wanted}. {why}"
    )


def _check_dependencies(levels: dict[str, int]) -> None:
    for (name, level), (needed, least) in DEPENDENCIES.items():
        if levels.get(name, 0) >= level and levels.get(needed, 0) < least:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{name}={levels[name]} needs {needed} at {least} or higher, and it would be {levels.get(needed, 0)}.",
            )
