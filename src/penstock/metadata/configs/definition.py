"""Defines what a configuration property consists of: type, default, limits, documentation and error messages.

Error messages reach users through client exceptions, so each message names the refused value and the values that are
allowed: `segment.bytes can't be '5': give 1048576 or more.`
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Protocol

ConfigValue = bool | int | float | str | tuple[str, ...] | None


class ConfigError(ValueError):
    """Raised if the name or the value of a config is refused; the message is for the user."""

    @staticmethod
    def invalid(name: str, value: object, *, remedy: str) -> ConfigError:
        return ConfigError(f"{name} can't be '{_shown(value)}': {remedy}")


class ConfigType(IntEnum):
    """Lists the types of configs, with their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(IntEnum):
    HIGH = 0
    MEDIUM = 1
    LOW = 2


class Validator(Protocol):
    def check(self, name: str, value: ConfigValue) -> None:
        """Raises ConfigError if the parsed value is out of bounds."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    low: float | None = None
    high: float | None = None

    def check(self, name: str, value: ConfigValue) -> None:
        if not isinstance(value, int | float):
            raise ConfigError.invalid(name, value, remedy="give a value.")
        if self.low is not None and value < self.low:
            raise ConfigError.invalid(name, value, remedy=f"give {self.low} or more.")
        if self.high is not None and value > self.high:
            raise ConfigError.invalid(name, value, remedy=f"give {self.high} or less.")


@dataclass(frozen=True, slots=True)
class RangeOr:
    """Accepts a number from `low` to `high`, or `other`, a value outside this range with a special meaning."""

    low: int
    high: int
    other: int

    def check(self, name: str, value: ConfigValue) -> None:
        if not isinstance(value, int) or (value != self.other and not self.low <= value <= self.high):
            why = f"give {self.low} to {self.high}, or {self.other}."
            raise ConfigError.invalid(name, value, remedy=why)


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]
    ignore_case: bool = False

    def check(self, name: str, value: ConfigValue) -> None:
        if self.ignore_case:
            if not isinstance(value, str) or value.upper() not in {known.upper() for known in self.values}:
                why = f"use one of {', '.join(sorted(v.upper() for v in self.values))}, in any case."
                raise ConfigError.invalid(name, value, remedy=why)
        elif value not in self.values:
            raise ConfigError.invalid(name, value, remedy=f"use one of {', '.join(self.values)}.")


@dataclass(frozen=True, slots=True)
class ListOf:
    """Accepts a list of items from `values`; any items if `values` is empty. With `allow_empty`, the list may be
    empty."""

    values: tuple[str, ...] = ()
    allow_empty: bool = True

    def check(self, name: str, value: ConfigValue) -> None:
        if not isinstance(value, tuple):
            raise ConfigError.invalid(name, value, remedy="give a value.")
        if not value and not self.allow_empty:
            raise ConfigError(f"{name} has no items: give one or more of {_listed(self.values)}.")
        for item in value:
            if not item.strip():
                raise ConfigError(f"{name} has a blank item: fill it in or drop its comma.")
            if self.values and item not in self.values:
                raise ConfigError.invalid(name, item, remedy=f"use one of {', '.join(self.values)}.")


@dataclass(frozen=True, slots=True)
class NonEmpty:
    def check(self, name: str, value: ConfigValue) -> None:
        if isinstance(value, str) and not value:
            raise ConfigError.invalid(name, value, remedy="give some text.")


@dataclass(frozen=True, slots=True)
class Matching:
    """Accepts text that matches a regular expression; `why` describes the expected form in the error message."""

    pattern: str
    why: str

    def check(self, name: str, value: ConfigValue) -> None:
        if not isinstance(value, str) or re.fullmatch(self.pattern, value) is None:
            raise ConfigError.invalid(name, value, remedy=self.why)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """Defines a config.

    `default` is Kafka's string form; None if there is no default. `supported` is False if Penstock ignores the value.
    """

    name: str
    type: ConfigType
    default: str | None
    doc: str
    validator: Validator | None = None
    importance: Importance = Importance.MEDIUM
    internal: bool = False
    supported: bool = True

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> ConfigValue:
        """Parses the text of a config's value into a typed value. Raises ConfigError for text that Kafka refuses."""
        value = parse_value(self.name, self.type, text)
        if isinstance(value, tuple):
            value = tuple(dict.fromkeys(value))  # duplicates are dropped
        if self.validator is not None:
            self.validator.check(self.name, value)
        return value

    def default_value(self) -> ConfigValue:
        return None if self.default is None else parse_value(self.name, self.type, self.default)


def table(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """Returns the config keys as a dict by name. The order is alphabetical, as in Kafka's lists."""
    return {key.name: key for key in sorted(keys, key=lambda key: key.name)}


def format_value(value: ConfigValue) -> str | None:
    """Returns the text that Kafka shows for a parsed value: `true`, `a,b`, `0.5`, `1.0E10`."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float():
            return _format_double(value)
        case int():
            return str(value)


_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?[fFdD]?)")
_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def parse_value(name: str, kind: ConfigType, text: str) -> ConfigValue:
    match kind:
        case ConfigType.PASSWORD:
            return text
        case ConfigType.STRING | ConfigType.CLASS:
            return text.strip()
        case ConfigType.BOOLEAN:
            return _parse_boolean(name, text)
        case ConfigType.DOUBLE:
            trimmed = text.strip()
            if _DECIMAL.fullmatch(trimmed) is None:
                raise ConfigError.invalid(name, text, remedy="write a number, such as 0.5.")
            return float(trimmed.rstrip("fFdD") if trimmed[-1] in "fFdD" else trimmed)
        case ConfigType.LIST:
            return split_list(text)
        case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
            return _parse_integer(name, kind, text)


def split_list(text: str) -> tuple[str, ...]:
    """Returns the items between commas, trimmed. Blank text gives an empty list, while `a,` ends in an empty item."""
    trimmed = text.strip()
    return tuple(re.split(r"\s*,\s*", trimmed)) if trimmed else ()


def _format_double(value: float) -> str:
    """Formats a double as Java does: plain from 0.001 up to 10 million, otherwise with an exponent."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(value)
    exponent = Decimal(repr(value)).adjusted()
    digits = Decimal(repr(value)).scaleb(-exponent).normalize()
    return f"{digits if '.' in str(digits) else f'{digits}.0'}E{exponent}"


def _parse_boolean(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigError.invalid(name, text, remedy="write true or false.")
    return lowered == "true"


def _parse_integer(name: str, kind: ConfigType, text: str) -> int:
    trimmed = text.strip()
    if _INTEGER.fullmatch(trimmed) is not None:
        number = int(trimmed)
        limit = 1 << (_BITS[kind] - 1)
        if -limit <= number < limit:
            return number
    raise ConfigError.invalid(name, text, remedy=f"write a whole number that fits {kind.name}.")


def _shown(value: object) -> str:
    match value:
        case tuple():
            return _listed(value)
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case _:
            return str(value)


def _listed(values: Iterable[object]) -> str:
    return f"[{', '.join(str(value) for value in values)}]"
