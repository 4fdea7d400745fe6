"""Reads and sets the log levels of this process, for DescribeConfigs and IncrementalAlterConfigs.

The levels have log4j's names. Levels that are set here last until the process stops: they are not metadata.
"""

from __future__ import annotations

import logging

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_44_incremental_alter_configs import AlterConfigsResource
from penstock.protocol.vocabulary import ConfigOperation

ROOT = "root"
TRACE = 5
LEVELS = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": TRACE,
    "WARN": logging.WARNING,
}


def logger_levels() -> dict[str, str]:
    """Returns the effective level of the root logger and of every existing logger of Penstock."""
    names = [name for name in logging.root.manager.loggerDict if name == "penstock" or name.startswith("penstock.")]
    found = {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}
    found[ROOT] = _level_name(logging.root.level)
    return found


def alter_loggers(resource: AlterConfigsResource, node_id: int, *, validate_only: bool) -> None:
    """Changes the levels of the given loggers. If one change is refused, changes no level and raises KafkaError."""
    try:
        asked = int(resource.resource_name)
    except ValueError:
        raise _invalid(f"'{resource.resource_name}' is not a node id: give a number.") from None
    if asked != node_id:
        raise _invalid(
            f"Loggers of node {resource.resource_name} can't be altered through node {node_id}: send the request to "
            "that node."
        )
    known = logger_levels()
    for config in resource.configs:
        _check(config.name, config.config_operation, config.value, known)
    if validate_only:
        return
    for config in resource.configs:
        logger = logging.root if config.name == ROOT else logging.getLogger(config.name)
        logger.setLevel(logging.NOTSET if config.value is None else LEVELS[config.value])


def _check(name: str, operation: int, level: str | None, known: dict[str, str]) -> None:
    match operation:
        case ConfigOperation.SET:
            if level not in LEVELS:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Logger {name} can't be set to {level}: use one of {', '.join(sorted(LEVELS))}.",
                )
        case ConfigOperation.DELETE:
            if name == ROOT:
                raise _invalid("The level of the root logger can't be deleted: set another level.")
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            raise _invalid(f"{ConfigOperation(operation).name} can't be applied to a logger: use SET or DELETE.")
        case _:
            raise _invalid(f"{operation} is not an operation on a logger: use 0 (SET) or 1 (DELETE).")
    if name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"There is no logger {name}: check its name.")


def _level_name(level: int) -> str:
    return next((name for name, known in sorted(LEVELS.items(), key=lambda item: -item[1]) if level >= known), "TRACE")


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)
