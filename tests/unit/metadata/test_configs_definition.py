"""Tests how config values are parsed, and the messages for refused values."""

import pytest

from penstock.metadata.configs.definition import (
    ConfigError,
    ConfigKey,
    ConfigType,
    ListOf,
    Matching,
    NonEmpty,
    OneOf,
    Range,
    RangeOr,
    format_value,
    parse_value,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.BOOLEAN, "false", False),
        (ConfigType.INT, " +5 ", 5),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.DOUBLE, "0.5f", 0.5),
        (ConfigType.DOUBLE, ".5", 0.5),
        (ConfigType.DOUBLE, "1.7976931348623157E308", 1.7976931348623157e308),
        (ConfigType.STRING, " gzip ", "gzip"),
        (ConfigType.PASSWORD, " kept as it is ", " kept as it is "),
        (ConfigType.LIST, "", ()),
        (ConfigType.LIST, " a , b,c ", ("a", "b", "c")),
        (ConfigType.LIST, "a,", ("a", "")),
    ],
)
def test_config_values_are_parsed_as_in_kafka(kind: ConfigType, text: str, value: object) -> None:
    assert parse_value("x", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (ConfigType.BOOLEAN, "yes", "write true or false."),
        (ConfigType.INT, "1_0", "write a whole number that fits INT."),
        (ConfigType.INT, "0x10", "write a whole number that fits INT."),
        (ConfigType.INT, "2147483648", "write a whole number that fits INT."),
        (ConfigType.INT, "٥", "write a whole number that fits INT."),
        (ConfigType.LONG, "99999999999999999999", "write a whole number that fits LONG."),
        (ConfigType.SHORT, "32768", "write a whole number that fits SHORT."),
        (ConfigType.DOUBLE, "x", "write a number, such as 0.5."),
        (ConfigType.DOUBLE, "nan", "write a number, such as 0.5."),
    ],
)
def test_value_of_a_wrong_type_is_refused_with_the_config_name(kind: ConfigType, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_value("some.config", kind, text)
    assert str(refused.value) == f"some.config can't be '{text}': {why}"


INT, LIST, STRING = ConfigType.INT, ConfigType.LIST, ConfigType.STRING


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (
            ConfigKey("a", INT, "1", "", Range(1)),
            "0",
            "a can't be '0': give 1 or more.",
        ),
        (
            ConfigKey("a", INT, "1", "", Range(1, 9)),
            "10",
            "a can't be '10': give 9 or less.",
        ),
        (
            ConfigKey("a", INT, "-1", "", RangeOr(1, 9, -1)),
            "0",
            "a can't be '0': give 1 to 9, or -1.",
        ),
        (
            ConfigKey("a", STRING, "x", "", OneOf(("x", "y"))),
            "z",
            "a can't be 'z': use one of x, y.",
        ),
        (
            ConfigKey("a", STRING, "x", "", OneOf(("x", "y"), ignore_case=True)),
            "z",
            "a can't be 'z': use one of X, Y, in any case.",
        ),
        (
            ConfigKey("a", LIST, "", "", ListOf(("x", "y"))),
            "x,z",
            "a can't be 'z': use one of x, y.",
        ),
        (ConfigKey("a", LIST, "", "", ListOf()), "x,", "a has a blank item: fill it in or drop its comma."),
        (
            ConfigKey("a", LIST, "", "", ListOf(("x",), allow_empty=False)),
            "",
            "a has no items: give one or more of [x].",
        ),
        (
            ConfigKey("a", STRING, "x", "", NonEmpty()),
            "",
            "a can't be '': give some text.",
        ),
        (
            ConfigKey("a", STRING, "x", "", Matching("[a-z]+", "letters only")),
            "1",
            "a can't be '1': letters only",
        ),
    ],
)
def test_error_of_a_config_value_outside_its_limits_contains_the_value_and_the_limits(
    key: ConfigKey, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        key.parse(text)
    assert str(refused.value) == message


def test_duplicate_item_of_a_list_config_is_dropped() -> None:
    assert ConfigKey("a", LIST, "", "", ListOf()).parse("x,y, x") == ("x", "y")


def test_config_value_in_another_case_is_accepted_where_kafka_ignores_case() -> None:
    key = ConfigKey("a", STRING, "x", "", OneOf(("UPGRADE",), ignore_case=True))
    assert key.parse("upgrade") == "upgrade"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (7, "7"),
        (("a", "b"), "a,b"),
        ((), ""),
        (None, None),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (1e10, "1.0E10"),
        (12345678.5, "1.23456785E7"),
        (0.0001, "1.0E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_config_values_are_formatted_as_in_java(
    value: bool | int | float | tuple[str, ...] | None, text: str | None
) -> None:
    assert format_value(value) == text
