"""Tests format strings (option -f) and start positions (option -o), which have the same syntax as in kcat."""

from __future__ import annotations

import pytest

from penstock.cli.exit import Failure
from penstock.cli.format import Place, compile_format, delimited, for_terminal, unescape
from penstock.cli.position import Absolute, AtTime, Beginning, End, Last, Span, Stored, parse_span, parse_time
from penstock.records.record import Record

PLACE = Place("t", 3)
RECORD = Record(42, 1_700_000_000_000, b"k", b"value", (("a", b"1"), ("b", None)))
NULLS = Record(0, -1, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t/%p@%o", b"t/3@42"),
        ("%k=%s\\n", b"k=value\n"),
        ("%T %K %S", b"1700000000000 1 5"),
        ("[%h]", b"[a=1,b=NULL]"),
        ("%R%s", b"\x00\x00\x00\x05value"),
        ("100%% \\x41\\0", b"100% A\0"),
        ("plain", b"plain"),
    ],
)
def test_record_is_printed_with_a_format_string(text: str, expected: bytes) -> None:
    assert compile_format(text)(PLACE, [RECORD]) == expected


def test_format_string_prints_null_for_a_null_key_or_value_and_minus_one_for_its_length() -> None:
    assert compile_format("%k|%s|%K|%S")(PLACE, [NULLS]) == b"||-1|-1"
    assert compile_format("%k|%s", null=b"NULL")(PLACE, [NULLS]) == b"NULL|NULL"
    assert compile_format("%R")(PLACE, [NULLS]) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("wrong", ["%x", "%", "\\xzz"])
def test_a_wrong_format_string_is_refused(wrong: str) -> None:
    with pytest.raises(Failure):
        compile_format(wrong)


def test_format_string_prints_the_bytes_of_a_value_unchanged() -> None:
    raw = bytes(range(256))
    assert compile_format("%s")(PLACE, [Record(0, 0, None, raw)]) == raw


def test_output_on_a_terminal_escapes_control_characters_except_newlines() -> None:
    record = Record(0, 0, b"\x1b]0;owned\x07", b"a\tb\nc\x1b[2J\xff\xc2\x9b", (("h\x1b", b"\x1b"),))
    shown = compile_format("\\x1b[1m%k %s %h %S", shown=for_terminal)(PLACE, [record])
    assert shown == b"\x1b[1m" + rb"\x1b]0;owned\x07 a" + b"\tb\nc" + rb"\x1b[2J\xff\x9b h\x1b=\x1b 12"
    both = delimited(key_delimiter=b":", delimiter=b"\n", shown=for_terminal)(PLACE, [record])
    assert b"\x1b" not in both
    assert b"\x1b" not in delimited(key_delimiter=None, delimiter=b"\n", shown=for_terminal)(PLACE, [record])


def test_key_delimiter_follows_the_key_and_record_delimiter_follows_the_value() -> None:
    assert delimited(key_delimiter=None, delimiter=b"\n")(PLACE, [RECORD]) == b"value\n"
    assert delimited(key_delimiter=b":", delimiter=b";")(PLACE, [RECORD, RECORD]) == b"k:value;" * 2
    assert delimited(key_delimiter=b":", delimiter=b"\n", null=b"NULL")(PLACE, [NULLS]) == b"NULL:NULL\n"


def test_unescape_leaves_unknown_backslash_escapes_unchanged() -> None:
    assert unescape("a\\qb\\") == b"a\\qb\\"
    assert unescape("é\\t") == "é\t".encode()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], Span(Beginning())),
        (["beginning"], Span(Beginning())),
        (["end"], Span(End())),
        (["stored"], Span(Stored())),
        (["7"], Span(Absolute(7))),
        (["-7"], Span(Last(7))),
        (["9223372036854775807"], Span(Absolute(2**63 - 1))),
        (["s@1000"], Span(AtTime(1000))),
        (["s@1000", "e@2000"], Span(AtTime(1000), 2000)),
        (["e@2000"], Span(Beginning(), 2000)),
    ],
)
def test_offsets_and_times_given_with_option_o_are_parsed_as_in_kcat(texts: list[str], expected: Span) -> None:
    assert parse_span(texts, Beginning()) == expected


@pytest.mark.parametrize(
    "texts",
    [
        *[["nowhere"], ["1", "2"], ["s@yesterday"], ["9223372036854775808"], ["-99999999999999999999"]],
        *[["s@9223372036854775808"], ["e@" + "9" * 5000]],
    ],
)
def test_option_o_with_an_invalid_position_is_refused(texts: list[str]) -> None:
    with pytest.raises(Failure):
        parse_span(texts, Beginning())


def test_option_o_accepts_a_time_as_a_date() -> None:
    assert parse_time("1970-01-01T00:00:01") == 1000
    assert parse_time("1970-01-01T01:00:00+01:00") == 0
