import re
from time import thread_time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.groups.consumer.regex import TopicPattern
from penstock.protocol.errors import ErrorCode, KafkaError

names = st.text("abAB01._-", max_size=8)
atoms = st.one_of(
    st.sampled_from(list("abAB01_")),
    st.sampled_from([".", r"\.", r"\d", r"\w", r"\D", "[ab]", "[^ab]", "[a-c0-1]", r"[\d_]", "(?:a|b)", "(a|)", "a|b"]),
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(pattern=patterns, name=names)
def test_patterns_mean_what_they_mean_elsewhere(pattern: str, name: str) -> None:
    try:
        expected = re.fullmatch(pattern, name, re.ASCII) is not None
    except re.error:
        assume(False)
    assert TopicPattern(pattern).matches(name) == expected


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("^t-.*$", "t-1", True),
        ("t", "t-1", False),
        ("(?i)TOPIC", "tOpic", True),
        ("(?i:a)b", "AB", False),
        ("(?P<first>a)(?<second>b)", "ab", True),
        (r"\Qa.b\E.*", "a.bc", True),
        (r"\Qa.b\E", "axb", False),
        ("[[:alpha:]]+[[:^digit:]]", "ab-", True),
        (r"\pL+\p{Nd}", "ab1", True),
        (r"[\pL]", "1", False),
        (r"\x61\x{62}", "ab", True),
        (r"\At\z", "t", True),
        ("a{,2}", "a", False),
        ("", "", True),
        ("ä", "ä", False),
        ("a^b", "ab", False),
    ],
)
def test_syntax_of_re2_is_understood(pattern: str, name: str, expected: bool) -> None:
    assert TopicPattern(pattern).matches(name) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *["(", ")", "a)", "[a", "*a", "a**", r"\1", "(?=a)", "(?!a)", "(?<=a)", "[b-a]", "a{1001}", "a{3,2}", r"\y"],
        *["\\", "(?P<1>a)", r"\p{Nope}", "[[:nope:]]", "(" * 200 + ")" * 200, "a" * 10_001, "((a{100}){100}){100}"],
        r"\xzz",
    ],
)
def test_what_re2_would_refuse_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        TopicPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.value.message


def test_a_hostile_pattern_costs_no_more_than_another() -> None:
    pattern = TopicPattern("(a*)*(a*)*(a|a)*b")
    started = thread_time()
    assert not pattern.matches("a" * 249)
    assert thread_time() - started < 1
