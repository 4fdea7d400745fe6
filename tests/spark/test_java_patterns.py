"""Translation of Java's regular expressions; each example was checked with Java's `Pattern`."""

from __future__ import annotations

import pytest

from penstock.spark.java_patterns import PatternError, java_pattern

NAMES = ("b1", "b2", "bx", "B1", "a-b", "a.b", "a_b", "axb", "orders.eu", "ordersXeu", "9", "")


def matched(pattern: str) -> list[str]:
    return [name for name in NAMES if java_pattern(pattern).fullmatch(name)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("b.*", ["b1", "b2", "bx"]),
        (r"b\p{Digit}", ["b1", "b2"]),
        (r"b\P{Digit}", ["bx"]),
        (r"\p{Lu}\d", ["B1"]),
        (r"\pL\pN", ["b1", "b2", "B1"]),
        (r"\p{IsAlphabetic}+", ["bx", "axb", "ordersXeu"]),
        (r"\p{javaLowerCase}\p{Punct}\p{gc=Ll}", ["a-b", "a.b", "a_b"]),
        (r"a[\p{Punct}&&[^.]]b", ["a-b", "a_b"]),
        (r"a[^\p{Punct}]b", ["axb"]),
        ("[a-c[9]][1-2]?", ["b1", "b2", "9"]),
        ("[a-z&&[^b]].b", ["a-b", "a.b", "a_b", "axb"]),
        (r"\Qorders.eu\E", ["orders.eu"]),
        (r"(?<what>orders)[.]eu\z", ["orders.eu"]),
        (r"(?<=x)|(?<!a)b1", ["b1"]),
        ("(?i)b1", ["b1", "B1"]),
        ("(?i)[^b]1?", ["9"]),
        (r"b\w++", ["b1", "b2", "bx"]),
        (r"a[\-\.]b", ["a-b", "a.b"]),
        (r"a\x2eb|a[\u005f]b", ["a.b", "a_b"]),
        (r"a[.-]b", ["a-b", "a.b"]),
        (r"\s*9\s*", ["9"]),
        (r"[\d]", ["9"]),
    ],
)
def test_translated_pattern_matches_the_same_topic_names_as_in_java(pattern: str, names: list[str]) -> None:
    assert matched(pattern) == names


@pytest.mark.parametrize("pattern", ["b[", "(", r"\p{Nonsense}", r"\p{Digit", "[z-a]", "a{2,1}", "x" * 20_000])
def test_invalid_java_pattern_is_refused_with_the_reason(pattern: str) -> None:
    with pytest.raises(PatternError):
        java_pattern(pattern)
