"""Tests how JSON values become rows of a table: each field gets a column, or the whole value is kept in `_bad`."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipelines.json_names import OWN, column_of, columns_by_field, field_of, folded
from penstock.pipelines.json_rows import Rows, seen_in, text_of
from penstock.pipelines.json_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    FLOAT,
    MOST_DEPTH,
    MOST_FIELDS,
    STRING,
    TIMESTAMP,
    DecimalOf,
    ListOf,
    Other,
    Scalar,
    Seen,
    Struct,
    Type,
    grown,
    widened,
)
from tools.examples import examples

pytestmark = pytest.mark.exhaustive

#: Names that conflict: names that differ only in case, invalid column names, names of the record's own columns.
NAMES = st.sampled_from(["a", "b", "A", "a b", "a.b", "a%20b", "", "_key", "_KEY", "_bad", "_id", "ı", "i", "ß", "x,y"])
NUMBERS = st.one_of(
    st.integers(-10, 10),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(lambda number: Raw(str(number))),
    st.sampled_from(["1.0", "1e3", "-0.0", "1e400", "1e-400", "0.10000000000000000001", "123456789012345678901.5"]).map(
        lambda text: Raw(text)
    ),
)
LEAVES = st.one_of(st.none(), st.booleans(), st.text("ab\u00e9\n", max_size=3), NUMBERS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)
BATCHES = st.lists(st.lists(st.one_of(OBJECTS, OBJECTS, VALUES), max_size=4), min_size=1, max_size=4)


class Raw(float):
    """Represents a number with its exact JSON text."""

    def __new__(cls, text: str) -> Raw:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


def dumped(value: Any) -> bytes:
    """Returns a value as JSON. Raw numbers keep their exact text, which json.dumps would change."""
    match value:
        case dict():
            return b"{%s}" % b",".join(json.dumps(name).encode() + b":" + dumped(each) for name, each in value.items())
        case list():
            return b"[%s]" % b",".join(dumped(each) for each in value)
        case Raw():
            return value.text.encode()
        case _:
            return json.dumps(value).encode()


def plain(value: Any) -> Any:
    """Returns a value for comparisons, with Decimal numbers and without null fields."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items() if each is not None}
        case list():
            return [plain(each) for each in value]
        case bool() | None | str():
            return value
        case Raw():
            return Decimal(value.text)
        case float():
            return Decimal(repr(value))
        case _:
            return Decimal(value)


def restored(row: dict[str, Any], columns: Struct) -> dict[str, Any]:
    """Returns the value of a row, restored from its columns alone."""
    fields = {column: name for name, column in columns_by_field(column for column, _ in columns.columns).items()}
    types = dict(columns.columns)
    return {fields[column]: _restored(each, types[column]) for column, each in row.items() if each is not None}


def _restored(value: Any, kind: Type) -> Any:
    match kind:
        case Struct():
            return restored(value, kind) if value is not None else None
        case ListOf(element):
            return [_restored(each, element) for each in value] if value is not None else None
        case _:
            return plain(value)


@settings(max_examples=examples(400), deadline=None)
@given(BATCHES, st.booleans())
def test_json_value_is_stored_completely_in_columns_or_as_text_in_column_bad(
    batches: list[list[Any]], widens: bool
) -> None:
    columns = Struct()
    for batch in batches:
        values = [dumped(value) for value in batch]
        columns = grown(columns, seen_in(values), widens=widens)
        rows = Rows(columns)
        for value, text in zip(batch, values):
            row = rows.row(text)
            if "_bad" in row:
                assert row["_bad"].encode() == text
            else:
                assert restored(row, columns) == plain(value)


@settings(max_examples=examples(200), deadline=None)
@given(BATCHES, st.booleans())
def test_new_json_values_add_and_widen_columns_but_never_remove_them(batches: list[list[Any]], widens: bool) -> None:
    columns, before = Struct(), list[tuple[bytes, dict[str, Any]]]()
    for batch in batches:
        values = [dumped(value) for value in batch]
        after = grown(columns, seen_in(values), widens=widens)
        assert [column for column, _ in after.columns][: len(columns.columns)] == [name for name, _ in columns.columns]
        for _, kind in widened(columns, after):
            assert widens
            assert kind == DECIMAL
        columns, rows = after, Rows(after)
        assert grown(columns, seen_in(values), widens=widens) == columns
        for text, row in before:  # earlier rows still have their whole value
            assert "_bad" in row or "_bad" not in rows.row(text)
        before += [(text, rows.row(text)) for text in values]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(OBJECTS, max_size=4), st.lists(OBJECTS, max_size=4), st.lists(OBJECTS, max_size=4))
def test_statistics_of_json_types_from_several_tasks_can_be_merged_in_any_order(
    a: list[Any], b: list[Any], c: list[Any]
) -> None:
    def seen(*lists: list[Any]) -> Seen:
        found = Seen()
        for each in lists:
            part = seen_in([dumped(value) for value in each])
            found.merge(Seen.from_json(json.loads(json.dumps(part.to_json()))))
        return found

    together = seen([*a, *b, *c])
    assert seen(a, b, c) == together
    assert seen(c, a, b) == together


@given(st.lists(st.text(max_size=5), max_size=8, unique=True), st.booleans())
def test_every_json_field_name_maps_to_a_unique_column_name_and_back(names: list[str], top: bool) -> None:
    columns = [column_of(name, top=top) for name in names]
    assert len(set(columns)) == len(names)
    assert columns_by_field(columns) == dict(zip(names, columns))
    assert [field_of(column) for column in columns] == names
    for column in columns:
        assert not set(column) & set(" ,;{}()\n\t=.`")
        assert not top or folded(column) not in map(folded, OWN)


@given(st.binary(max_size=12))
def test_bytes_that_are_not_a_json_object_are_kept_as_text_in_column_bad(value: bytes) -> None:
    row = Rows(Struct()).row(value)
    assert row in ({}, {"_bad": text_of(value)})
    if row:
        assert row["_bad"].encode().decode() == row["_bad"]


# --- each rule once


def table(*batches: list[str], known: Struct | None = None, widens: bool = True) -> tuple[Struct, list[dict[str, Any]]]:
    columns = known or Struct()
    found: list[dict[str, Any]] = []
    for batch in batches:
        values = [value.encode() for value in batch]
        columns = grown(columns, seen_in(values), widens=widens)
        found += [Rows(columns).row(value) for value in values]
    return columns, found


def test_value_that_is_not_a_json_object_does_not_affect_the_columns_of_other_values() -> None:
    for pill in ('"s"', "[1]", "null", "", "nope", "{", '{"n":NaN}', '{"n":1,"n":2}', '{"n":"\\ud800"}', "1", "{}{}"):
        columns, rows = table(['{"n":1}', pill, '{"n":2}'])
        assert columns == Struct((("n", BIGINT),))
        assert rows == [{"n": 1}, {"_bad": pill}, {"n": 2}]


def test_columns_of_nested_objects_and_arrays_get_new_fields() -> None:
    columns, rows = table(['{"a":{"x":1},"l":[{"x":1}]}'], ['{"a":{"x":2,"y":3},"l":[{"y":[{"z":true}]},{}]}'])
    inner = ListOf(Struct((("z", BOOLEAN),)))
    assert columns.columns[0] == ("a", Struct((("x", BIGINT), ("y", BIGINT))))
    assert columns.columns[1] == ("l", ListOf(Struct((("x", BIGINT), ("y", inner)))))
    assert rows[1] == {"a": {"x": 2, "y": 3}, "l": [{"y": [{"z": True}]}, {}]}


def test_integer_column_is_widened_to_decimal_if_a_number_needs_it() -> None:
    columns, rows = table(['{"n":1}'], ['{"n":2.5}', '{"n":99999999999999999999}', '{"n":1e30}'])
    assert columns == Struct((("n", DECIMAL),))
    assert rows[1:] == [
        {"n": Decimal("2.5")},
        {"n": Decimal(99999999999999999999)},
        {"n": None, "_bad": '{"n":1e30}'},
    ]
    narrow = Struct((("n", Scalar("int")), ("d", DecimalOf(2, 1))))
    columns, _ = table([f'{{"n":{2**31},"d":12.75}}'], known=narrow)
    assert columns == Struct((("n", BIGINT), ("d", DECIMAL)))
    assert list(widened(narrow, columns)) == [(("n",), BIGINT), (("d",), DECIMAL)]
    assert table(['{"n":5,"d":1.5}'], known=narrow)[0] == narrow
    assert table([f'{{"n":{2**31}}}'], known=narrow, widens=False)[1] == [{"n": None, "_bad": f'{{"n":{2**31}}}'}]


def test_numbers_with_a_point_become_doubles_unless_a_double_would_round_them() -> None:
    columns, rows = table(['{"p":1.5}', '{"p":2}'], ['{"p":12.75}', '{"p":100}', '{"p":1234567.891}'])
    assert columns == Struct((("p", DOUBLE),))
    assert [row["p"] for row in rows] == [1.5, 2.0, 12.75, 100.0, 1234567.891]
    assert table(['{"p":0.12345678901234567}'])[0] == Struct((("p", DECIMAL),))
    assert table(['{"p":1.5}', '{"p":9007199254740993}'])[0] == Struct((("p", DECIMAL),))


def test_column_of_a_new_json_field_gets_the_most_frequent_type_of_its_values() -> None:
    columns, rows = table(['{"n":"x"}', '{"n":1}', '{"n":2}'])
    assert columns == Struct((("n", BIGINT),))
    assert rows[0] == {"n": None, "_bad": '{"n":"x"}'}


def test_json_field_gets_no_column_while_all_its_values_are_null() -> None:
    columns, rows = table(['{"a":null,"n":1}', '{"a":{}}', '{"a":[]}'])
    assert columns == Struct((("n", BIGINT),))
    assert rows == [{"n": 1}, {"_bad": '{"a":{}}'}, {"_bad": '{"a":[]}'}]
    columns, rows = table(['{"a":{"b":1}}', '{"a":{}}', '{"a":null}'])
    assert rows == [{"a": {"b": 1}}, {"a": {}}, {}]


def test_field_names_that_differ_only_in_case_get_one_column() -> None:
    columns, rows = table(['{"id":1}'], ['{"id":1,"ID":2}'], ['{"id":3}'])
    assert columns == Struct((("id", BIGINT),))
    assert rows == [{"id": 1}, {"id": 1, "_bad": '{"id":1,"ID":2}'}, {"id": 3}]


def test_json_fields_with_special_characters_or_names_of_penstocks_columns_get_columns() -> None:
    columns, rows = table(['{"a b":1,"c.d":{"e,f":2},"":3,"_id":4,"_key":5,"_Bad":6,"o":{"_key":7}}'])
    assert sorted(name for name, _ in columns.columns) == ["%", "%5FBad", "%5Fkey", "_id", "a%20b", "c%2Ed", "o"]
    assert rows == [{"a%20b": 1, "c%2Ed": {"e%2Cf": 2}, "%": 3, "_id": 4, "%5Fkey": 5, "%5FBad": 6, "o": {"_key": 7}}]
    known = Struct((("c.d", BIGINT),))  # a column that Penstock did not name
    assert table(['{"c.d":1}'], known=known) == (known, [{"c.d": 1}])


def test_value_whose_field_has_another_type_than_its_column_is_kept_in_column_bad() -> None:
    _, rows = table(['{"_id":1,"v":1}'], ['{"_id":"abc","v":2}', '{"_id":{"x":1}}'])
    assert rows[1:] == [
        {"_id": None, "v": 2, "_bad": '{"_id":"abc","v":2}'},
        {"_id": None, "_bad": '{"_id":{"x":1}}'},
    ]


def test_existing_table_columns_accept_only_json_values_of_their_type() -> None:
    known = Struct(
        (("d", DATE), ("t", TIMESTAMP), ("f", FLOAT), ("m", Other('"binary"')), ("s", STRING), ("b", BOOLEAN))
    )
    fits = '{"d":"2024-02-29","t":"2024-01-01T00:00:00.5Z","f":0.5,"s":"x","b":false}'
    [row] = table([fits], known=known)[1]
    assert "_bad" not in row
    assert (row["d"].isoformat(), row["t"].isoformat()) == ("2024-02-29", "2024-01-01T00:00:00.500000+00:00")
    for pill in (
        '{"d":"2024-02-30"}',
        '{"d":"20240229"}',
        '{"t":"2024-01-01T00:00:00"}',
        '{"t":"2024-01-01T00:00:00.1234567Z"}',
        '{"t":"2024-01-01T00:00:00,1234567Z"}',
        '{"f":0.1}',
        '{"f":1e300}',
        '{"m":"x"}',
        '{"s":1}',
        '{"b":"no"}',
    ):
        columns, [row] = table([pill], known=known)
        assert row["_bad"] == pill
        assert columns == known


def test_partition_column_of_a_table_keeps_its_type() -> None:
    known = Struct((("day", Scalar("int")),))
    seen = seen_in([b'{"day":99999999999}'])
    assert grown(known, seen, widens=True, fixed=frozenset({"day"})) == known


def test_partition_value_that_cannot_be_a_directory_name_goes_to_column_bad() -> None:
    fixed = frozenset({"day"})
    assert grown(Struct(), seen_in([b'{"day":{"x":1}}']), widens=True, fixed=fixed) == Struct((("day", STRING),))
    rows = Rows(Struct((("day", STRING), ("n", STRING))), fixed)
    assert rows.row(b'{"day":"a/b","n":""}') == {"day": "a/b", "n": ""}
    for text in ("", "__HIVE_DEFAULT_PARTITION__", "x" * 201, "/" * 67, "é" * 101):
        value = json.dumps({"day": text}, ensure_ascii=False)
        assert rows.row(value.encode()) == {"day": None, "_bad": value}
    assert rows.row(b'{"day":"%s"}' % (b"x" * 200)) == {"day": "x" * 200}


def test_json_fields_named_like_columns_of_delta_get_escaped_column_names() -> None:
    columns, rows = table(['{"_row_id_":1,"_x":2,"o":{"_row_id_":3}}'])
    assert rows == [{"%5Frow_id_": 1, "_x": 2, "o": {"_row_id_": 3}}]
    assert restored(rows[0], columns) == {"_row_id_": 1, "_x": 2, "o": {"_row_id_": 3}}


def test_values_with_too_many_or_too_deeply_nested_fields_are_kept_in_column_bad() -> None:
    many = "{" + ",".join(f'"f{number:05}":1' for number in range(MOST_FIELDS + 1)) + "}"
    columns, [row] = table([many])
    assert len(columns.columns) == MOST_FIELDS
    assert row["_bad"] == many
    for depth in (MOST_DEPTH + 1, 100_000):
        deep = '{"a":' * depth + "1" + "}" * depth
        columns, [row] = table([deep])
        assert row["_bad"] == deep


@pytest.mark.parametrize("text", ["1e999999999999999999999", "1" * 5000, "-1e-99999999999", "1E5"])
def test_json_numbers_of_any_size_are_kept_exactly(text: str) -> None:
    value = f'{{"n":{text}}}'
    columns, [row] = table([value])
    assert row.get("_bad") == value or restored(row, columns) == {"n": Decimal(text)}
