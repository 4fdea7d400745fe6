"""Tests edge cases of Java's properties format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.properties import duplicate_properties, format_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a: b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("=b", {"": "b"}),
        ("a==b", {"a": "=b"}),
        ("a : = b", {"a": "= b"}),
        ("# a=b\n  ! c=d\n\n   e=f", {"e": "f"}),
        ("a=b\\\n   c,\\\n\td", {"a": "bc,d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("# comment \\\na=b", {"a": "b"}),
        ("a=b\\\n# not a comment", {"a": "b# not a comment"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\tx\\ny\\r\\f\\\\z\\q", {"a": "\tx\ny\r\f\\zq"}),
        ("a=\\u00e9\\u4e2D", {"a": "é中"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=1\na=2", {"a": "2"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
    ],
)
def test_lines_of_a_properties_file_are_parsed_as_in_java(text: str, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries


def test_repeated_key_of_a_properties_file_is_reported_as_a_duplicate() -> None:
    assert duplicate_properties("a=1\nb=2\na=3\na=4\nb=5\nc=6") == ["a", "b"]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz"])
def test_properties_file_with_a_malformed_unicode_escape_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        parse_properties(text)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_formatted_properties_are_parsed_back_unchanged(entries: dict[str, str]) -> None:
    assert parse_properties(format_properties(entries, comment="made by a test")) == entries
