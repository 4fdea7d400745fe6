"""Tests how client quotas are changed and described. The cases were first seen on Apache Kafka 4.3."""

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller import quotas
from penstock.metadata.controller.quotas import alter_client_quotas, describe_client_quotas
from penstock.metadata.image import MetadataImage, QuotaEntity
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_48_describe_client_quotas as describe
from penstock.protocol.messages import api_49_alter_client_quotas as alter

USER, CLIENT, IP = "user", "client-id", "ip"
PRODUCE = "producer_byte_rate"
Named = list[tuple[str, str | None]]
Ops = list[tuple[str, float | None]]


def entry(entity: Named, ops: Ops) -> alter.EntryData:
    return alter.EntryData(
        entity=[alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[alter.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def change(
    image: MetadataImage, *entries: tuple[Named, Ops], validate_only: bool = False
) -> tuple[list[tuple[str, str | None]], MetadataImage]:
    request = alter.AlterClientQuotasRequest(
        entries=[entry(entity, ops) for entity, ops in entries], validate_only=validate_only
    )
    decision = alter_client_quotas(image, request)
    codes = [(ErrorCode(each.error_code).name, each.error_message) for each in decision.reply.entries]
    return codes, apply(image, decision.records)


def test_quotas_can_be_set_and_removed() -> None:
    codes, image = change(
        MetadataImage(),
        ([(USER, "a"), (CLIENT, "c")], [(PRODUCE, 3000.0), ("request_percentage", 50.5)]),
        ([(USER, None)], [(PRODUCE, 2000.0)]),
        ([(IP, "1.2.3.4")], [("connection_creation_rate", 10.0)]),
    )
    assert codes == [("NONE", None)] * 3
    assert image.client_quotas == {
        ((CLIENT, "c"), (USER, "a")): {PRODUCE: 3000.0, "request_percentage": 50.5},
        ((USER, None),): {PRODUCE: 2000.0},
        ((IP, "1.2.3.4"),): {"connection_creation_rate": 10.0},
    }
    _, image = change(image, ([(USER, None)], [(PRODUCE, None)]))
    assert ((USER, None),) not in image.client_quotas


def test_an_unchanged_quota_writes_no_record() -> None:
    image = MetadataImage(client_quotas={((USER, "a"),): {PRODUCE: 5.0}})
    unchanged: list[Ops] = [[(PRODUCE, 5.0)], [("consumer_byte_rate", None)], [("nope", None)], []]
    for ops in unchanged:
        request = alter.AlterClientQuotasRequest(entries=[entry([(USER, "a")], ops)])
        decision = alter_client_quotas(image, request)
        assert decision.records == []
        assert decision.reply.entries[0].error_code == 0


def test_validate_only_quota_request_changes_no_quota() -> None:
    codes, image = change(MetadataImage(), ([(USER, "a")], [(PRODUCE, 5.0)]), validate_only=True)
    assert codes == [("NONE", None)]
    assert image.client_quotas == {}


@pytest.mark.parametrize(
    ("entity", "ops", "message"),
    [
        ([], [(PRODUCE, 1.0)], "The quota has no entity: name a user, client-id or ip."),
        ([("foo", "x")], [(PRODUCE, 1.0)], "'foo' is not a type of quota entity: use user, client-id or ip."),
        ([(USER, "")], [(PRODUCE, 1.0)], "The user has an empty name: give a name, or null for the default."),
        ([(USER, "a")], [("nope", 1.0)], "There is no quota 'nope' for this type of entity: check the key."),
        (
            [(USER, "a")],
            [("connection_creation_rate", 1.0)],
            "There is no quota 'connection_creation_rate' for this type of entity: check the key.",
        ),
        (
            [(IP, "1.2.3.4")],
            [(PRODUCE, 1.0)],
            "There is no quota 'producer_byte_rate' for this type of entity: check the key.",
        ),
        ([(USER, "a")], [(PRODUCE, 0.0)], "producer_byte_rate can't be 0.0: give a number above 0."),
        ([(USER, "a")], [(PRODUCE, -1.0)], "producer_byte_rate can't be -1.0: give a number above 0."),
        ([(USER, "a")], [(PRODUCE, float("nan"))], "producer_byte_rate can't be nan: give a number above 0."),
        ([(USER, "a")], [(PRODUCE, 1.5)], "producer_byte_rate can't be 1.5: give a whole number."),
        ([(USER, "a")], [(PRODUCE, 1e30)], "producer_byte_rate can't be 1e+30: give a number that fits a LONG."),
        (
            [(IP, None)],
            [("connection_creation_rate", 3e9)],
            "connection_creation_rate can't be 3000000000.0: give a number that fits an INT.",
        ),
        (
            [(IP, "not a host!!")],
            [("connection_creation_rate", 1.0)],
            "'not a host!!' is not an IP address: give an IP address, or localhost.",
        ),
        (
            [(IP, "1.2.3.4"), (USER, "a")],
            [("connection_creation_rate", 1.0)],
            "A quota for an ip can't have a user or client-id: leave them out.",
        ),
        ([(USER, "a")], [(PRODUCE, 1.0), (PRODUCE, 2.0)], "user=a has a quota key twice: give each key once."),
    ],
)
def test_invalid_quota_changes_are_refused_with_a_message(entity: Named, ops: Ops, message: str) -> None:
    codes, image = change(MetadataImage(), (entity, ops))
    assert codes == [("INVALID_REQUEST", message)]
    assert image.client_quotas == {}


def test_quota_request_that_names_an_entity_twice_applies_only_the_first_entry() -> None:
    codes, image = change(MetadataImage(), ([(USER, "a")], [(PRODUCE, 1.0)]), ([(USER, "a")], [(PRODUCE, 2.0)]))
    assert codes == [
        ("INVALID_REQUEST", "user=a is in the request twice, and only its first entry counts: give it once.")
    ]
    assert image.client_quotas == {((USER, "a"),): {PRODUCE: 1.0}}


def test_refused_quota_entity_does_not_affect_the_other_entities() -> None:
    codes, image = change(MetadataImage(), ([(USER, "")], [(PRODUCE, 1.0)]), ([(USER, "a")], [(PRODUCE, 2.0)]))
    assert [code for code, _ in codes] == ["INVALID_REQUEST", "NONE"]
    assert image.client_quotas == {((USER, "a"),): {PRODUCE: 2.0}}


# --- describe -------------------------------------------------------------------------------------

A, DEFAULT_USER, A_AND_C, C, A_AND_DEFAULT, ADDRESS = (
    ((USER, "a"),),
    ((USER, None),),
    ((CLIENT, "c"), (USER, "a")),
    ((CLIENT, "c"),),
    ((CLIENT, None), (USER, "a")),
    ((IP, "1.2.3.4"),),
)
ALL: list[QuotaEntity] = [A, DEFAULT_USER, A_AND_C, C, A_AND_DEFAULT, ADDRESS]
IMAGE = MetadataImage(client_quotas={entity: {PRODUCE: 1.0} for entity in ALL})
EXACT, DEFAULT, SPECIFIED = range(3)
Filter = list[tuple[str, int, str | None]]


def ask(filters: Filter, *, strict: bool = False) -> describe.DescribeClientQuotasRequest:
    components = [describe.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in filters]
    return describe.DescribeClientQuotasRequest(components=components, strict=strict)


@pytest.mark.parametrize(
    ("filters", "strict", "entities"),
    [
        ([], False, ALL),
        ([], True, []),
        ([(USER, EXACT, "a")], False, [A, A_AND_C, A_AND_DEFAULT]),
        ([(USER, EXACT, "a")], True, [A]),
        ([(USER, DEFAULT, None)], False, [DEFAULT_USER]),
        ([(USER, SPECIFIED, None)], False, [A, DEFAULT_USER, A_AND_C, A_AND_DEFAULT]),
        ([(USER, SPECIFIED, None)], True, [A, DEFAULT_USER]),
        ([(USER, EXACT, "a"), (CLIENT, SPECIFIED, None)], False, [A_AND_C, A_AND_DEFAULT]),
        ([(USER, EXACT, "a"), (CLIENT, DEFAULT, None)], True, [A_AND_DEFAULT]),
        ([(IP, SPECIFIED, None)], False, [ADDRESS]),
        ([(USER, EXACT, "")], False, []),
    ],
)
def test_describe_client_quotas_filters_by_entity(filters: Filter, strict: bool, entities: list[QuotaEntity]) -> None:
    entries = [entry for some in describe_client_quotas(IMAGE, ask(filters, strict=strict)) for entry in some]
    found = [tuple((each.entity_type, each.entity_name) for each in entry.entity) for entry in entries]
    assert found == entities
    assert all([(value.key, value.value) for value in entry.values] == [(PRODUCE, 1.0)] for entry in entries)


@pytest.mark.parametrize(
    ("filters", "code", "message"),
    [
        (
            [("", EXACT, "c")],
            ErrorCode.INVALID_REQUEST,
            "A filter component has no entity type: use user, client-id or ip.",
        ),
        (
            [("foo", SPECIFIED, None)],
            ErrorCode.UNSUPPORTED_VERSION,
            "Quotas can't be filtered by 'foo': use user, client-id or ip.",
        ),
        (
            [(USER, 3, None)],
            ErrorCode.INVALID_REQUEST,
            "3 is not a match type: use 0 (exact), 1 (default) or 2 (specified).",
        ),
        (
            [(USER, EXACT, None)],
            ErrorCode.INVALID_REQUEST,
            "An EXACT match of user needs a name: give a name, or use DEFAULT.",
        ),
        (
            [(USER, DEFAULT, "x")],
            ErrorCode.INVALID_REQUEST,
            "A DEFAULT match of user takes no name: leave the name null.",
        ),
        (
            [(USER, SPECIFIED, "x")],
            ErrorCode.INVALID_REQUEST,
            "A SPECIFIED match of user takes no name: leave the name null.",
        ),
        (
            [(USER, EXACT, "a"), (USER, DEFAULT, None)],
            ErrorCode.INVALID_REQUEST,
            "The filter contains user twice: give each type once.",
        ),
        (
            [(USER, SPECIFIED, None), (USER, SPECIFIED, None)],
            ErrorCode.INVALID_REQUEST,
            "The filter contains user twice: give each type once.",
        ),
        (
            [(USER, SPECIFIED, None), (IP, SPECIFIED, None)],
            ErrorCode.INVALID_REQUEST,
            "A quota can't have an ip together with a user or client-id: filter by one or the other.",
        ),
    ],
)
def test_invalid_filters_of_describe_client_quotas_are_refused(filters: Filter, code: ErrorCode, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        list(describe_client_quotas(IMAGE, ask(filters)))
    assert (refused.value.code, refused.value.message) == (code, message)


def test_connection_rate_quota_is_refused_above_the_largest_int32() -> None:
    for rate, code in ((2.0**31 - 1, "NONE"), (2.0**31, "INVALID_REQUEST")):
        [(name, _)], _ = change(MetadataImage(), ([(IP, "1.2.3.4")], [("connection_creation_rate", rate)]))
        assert name == code


def test_quota_change_is_refused_if_any_part_of_its_entity_is_invalid() -> None:
    entities: list[Named] = [[(CLIENT, "c"), ("planet", "mars")], [(CLIENT, "c"), (USER, "")]]
    for entity in entities:
        [(name, _)], _ = change(MetadataImage(), (entity, [(PRODUCE, 1.0)]))
        assert name == "INVALID_REQUEST"


def test_number_of_quotas_that_one_request_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_RECORDS_PER_REQUEST", 2)
    entries: list[tuple[Named, Ops]] = [([(USER, name)], [(PRODUCE, 1.0)]) for name in "abc"]
    assert [name for name, _ in change(MetadataImage(), *entries[:2])[0]] == ["NONE", "NONE"]
    with pytest.raises(KafkaError) as refused:
        change(MetadataImage(), *entries)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
