"""Tests that capture groups of patterns match the same text as in Python's `re`, in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.pattern_groups import GroupPattern

ATOMS = st.sampled_from(["a", "b", ",", ".", "[ab]", "[^a]"])
REPEATS = st.sampled_from(["", "*", "+", "?", "*?", "+?", "??", "{1,2}", "{0,2}?", "{2}"])


@st.composite
def patterns(draw: st.DrawFn, depth: int = 1) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        atom = draw(ATOMS)
        if depth and draw(st.booleans()):
            inner = [draw(patterns(depth - 1)) for _ in range(draw(st.integers(1, 2)))]
            atom = f"({draw(st.sampled_from(['', '?:']))}{'|'.join(inner)})"
        parts.append(atom + draw(REPEATS))
    return "".join(parts)


# Patterns and texts are small: the time of Python's `re` grows exponentially with nested repetitions.
@given(patterns(), st.lists(st.text("ab,", max_size=4), min_size=1, max_size=8))
def test_pattern_with_groups_matches_the_same_texts_as_pythons_re(pattern: str, texts: list[str]) -> None:
    compiled = GroupPattern(pattern)
    assert compiled.groups == re.compile(pattern).groups
    for text in texts:
        expected = re.fullmatch(pattern, text)
        found = compiled.match(text)
        assert (found is None) == (expected is None)


@pytest.mark.parametrize(
    ("pattern", "text", "groups"),
    [
        ("^CN=(.*?),(.*)$", "CN=a,b,c", ("a", "b,c")),
        ("^CN=(.*),(.*)$", "CN=a,b,c", ("a,b", "c")),
        ("(a|ab)(c|bcd)(d*)", "abcd", ("a", "bcd", "")),
        ("(a+?)(a*)", "aaa", ("a", "aa")),
        ("(?:(x)|(y))+", "xy", ("x", "y")),
        ("(a)|b", "b", ("",)),
        ("((a)(b))?", "ab", ("ab", "a", "b")),
        ("(?P<user>[a-z]{2,3}?)(.{0,2})", "abcd", ("ab", "cd")),
    ],
)
def test_capture_groups_match_the_same_texts_as_in_a_backtracking_regex_engine(
    pattern: str, text: str, groups: tuple[str, ...]
) -> None:
    found = GroupPattern(pattern).match(text)
    assert found == (text, *groups)


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "(a)\\1", "a**", "\\bx", "a*+"])
def test_group_pattern_with_unsupported_syntax_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        GroupPattern(pattern)
