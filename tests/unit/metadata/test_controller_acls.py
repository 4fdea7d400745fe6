"""Tests the controller's decisions on ACLs without a node."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller import acls
from penstock.metadata.controller.acls import create_acls, delete_acls, described, filter_of, matching_acls
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST
from penstock.metadata.image import AclImage, MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_30_create_acls as create
from penstock.protocol.messages import api_31_delete_acls as delete
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation, PatternType, Permission

LONGEST = 32_767 // 4
ORDERS = AclImage(AclResource.TOPIC, "orders", PatternType.LITERAL, "User:ann", "*", Operation.READ, Permission.ALLOW)
OR_PREFIX = replace(ORDERS, resource_name="or", pattern_type=PatternType.PREFIXED)
ALL_TOPICS = replace(ORDERS, resource_name="*")
BOB = replace(ORDERS, principal="User:bob", host="10.0.0.1", operation=Operation.WRITE, permission_type=Permission.DENY)
GROUP = replace(ORDERS, resource_type=AclResource.GROUP)


def creation(acl: AclImage, **fields: Any) -> create.AclCreation:
    return create.AclCreation(
        **{
            "resource_type": acl.resource_type,
            "resource_name": acl.resource_name,
            "resource_pattern_type": acl.pattern_type,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission_type,
            **fields,
        }
    )


def created(image: MetadataImage, *asked: create.AclCreation) -> tuple[list[ErrorCode], MetadataImage]:
    decision = create_acls(image, create.CreateAclsRequest(creations=list(asked)), Random(len(image.acls)))
    return [ErrorCode(each.error_code) for each in decision.reply.results], apply(image, decision.records)


def image_with(*wanted: AclImage) -> MetadataImage:
    return created(MetadataImage(), *map(creation, wanted))[1]


def selecting(**fields: Any) -> delete.DeleteAclsFilter:
    """Returns a filter that matches every ACL with the given field values."""
    return delete.DeleteAclsFilter(
        **{
            "resource_type_filter": AclResource.ANY,
            "resource_name_filter": None,
            "pattern_type_filter": PatternType.ANY,
            "principal_filter": None,
            "host_filter": None,
            "operation": Operation.ANY,
            "permission_type": Permission.ANY,
            **fields,
        }
    )


def test_each_acl_of_a_request_is_created_once() -> None:
    codes, image = created(MetadataImage(), creation(ORDERS), creation(BOB), creation(ORDERS), creation(GROUP))
    assert codes == [ErrorCode.NONE] * 4
    assert sorted(image.acls.values(), key=repr) == sorted([ORDERS, BOB, GROUP], key=repr)
    codes, again = created(image, creation(BOB))
    assert codes == [ErrorCode.NONE]
    assert again.acls == image.acls


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": AclResource.UNKNOWN},
        {"resource_type": AclResource.ANY},
        {"resource_type": 8},
        {"resource_pattern_type": PatternType.MATCH},
        {"resource_pattern_type": PatternType.ANY},
        {"operation": Operation.UNKNOWN},
        {"operation": Operation.ANY},
        {"operation": 99},
        {"permission_type": Permission.UNKNOWN},
        {"permission_type": Permission.ANY},
        {"resource_name": ""},
        {"resource_name": "n" * (LONGEST + 1)},
        {"principal": "User:" + "n" * (LONGEST - 4)},
        {"host": "n" * (LONGEST + 1)},
        {"host": ""},
        {"resource_type": AclResource.CLUSTER},
        {"principal": "ann"},
        {"principal": ":ann"},
        {"principal": "User:"},
    ],
)
def test_invalid_acl_is_refused_and_the_valid_acls_of_the_request_are_created(fields: dict[str, Any]) -> None:
    codes, image = created(MetadataImage(), creation(ORDERS, **fields), creation(BOB))
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert list(image.acls.values()) == [BOB]


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_name": "n" * LONGEST},
        {"principal": "User:" + "n" * (LONGEST - 5)},
        {"host": "n" * LONGEST},
        {"resource_type": AclResource.CLUSTER, "resource_name": CLUSTER_NAME},
        {"resource_name": CLUSTER_NAME},
    ],
)
def test_acl_with_unusual_but_valid_names_is_created(fields: dict[str, Any]) -> None:
    assert created(MetadataImage(), creation(ORDERS, **fields))[0] == [ErrorCode.NONE]


def test_request_that_creates_or_deletes_too_many_acls_is_refused() -> None:
    many = [creation(ORDERS, resource_name=f"t{number}") for number in range(MAX_RECORDS_PER_REQUEST + 1)]
    codes, image = created(MetadataImage(), *many[1:])
    assert set(codes) == {ErrorCode.NONE}
    with pytest.raises(KafkaError) as refused:
        created(MetadataImage(), *many)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert len(delete_acls(image, delete.DeleteAclsRequest(filters=[selecting()])).records) == MAX_RECORDS_PER_REQUEST
    _, image = created(image, many[0])
    with pytest.raises(KafkaError) as refused:
        delete_acls(image, delete.DeleteAclsRequest(filters=[selecting()]))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


ALL = (ORDERS, OR_PREFIX, ALL_TOPICS, BOB, GROUP)
SELECTED: list[tuple[dict[str, Any], tuple[AclImage, ...]]] = [
    ({}, ALL),
    ({"resource_type_filter": AclResource.GROUP}, (GROUP,)),
    ({"resource_name_filter": "orders"}, (ORDERS, BOB, GROUP)),
    ({"resource_name_filter": "*"}, (ALL_TOPICS,)),
    ({"resource_name_filter": "unknown"}, ()),
    ({"resource_name_filter": "or", "pattern_type_filter": PatternType.PREFIXED}, (OR_PREFIX,)),
    ({"resource_name_filter": "orders", "pattern_type_filter": PatternType.MATCH}, ALL),
    ({"resource_name_filter": "ore", "pattern_type_filter": PatternType.MATCH}, (OR_PREFIX, ALL_TOPICS)),
    ({"resource_name_filter": "o", "pattern_type_filter": PatternType.MATCH}, (ALL_TOPICS,)),
    ({"pattern_type_filter": PatternType.LITERAL}, (ORDERS, ALL_TOPICS, BOB, GROUP)),
    ({"pattern_type_filter": PatternType.MATCH}, ALL),
    ({"principal_filter": "User:bob"}, (BOB,)),
    ({"host_filter": "*"}, (ORDERS, OR_PREFIX, ALL_TOPICS, GROUP)),
    ({"operation": Operation.WRITE}, (BOB,)),
    ({"permission_type": Permission.ALLOW}, (ORDERS, OR_PREFIX, ALL_TOPICS, GROUP)),
]


@pytest.mark.parametrize(("fields", "expected"), SELECTED)
def test_acl_filter_deletes_exactly_the_acls_that_it_matches(
    fields: dict[str, Any], expected: tuple[AclImage, ...]
) -> None:
    image = image_with(*ALL)
    decision = delete_acls(image, delete.DeleteAclsRequest(filters=[selecting(**fields)]))
    [result] = decision.reply.filter_results
    assert [(each.resource_name, each.principal, each.resource_type) for each in result.matching_acls] == [
        (each.resource_name, each.principal, each.resource_type) for each in expected
    ]
    assert set(apply(image, decision.records).acls.values()) == set(ALL) - set(expected)
    assert [each for each in matching_acls(ALL, filter_of(selecting(**fields))) if each] == list(expected)


def test_acl_that_two_filters_select_is_in_both_results_and_is_deleted_once() -> None:
    image = image_with(ORDERS, BOB)
    filters = [selecting(resource_name_filter="orders"), selecting(principal_filter="User:ann")]
    decision = delete_acls(image, delete.DeleteAclsRequest(filters=filters))
    assert [len(each.matching_acls) for each in decision.reply.filter_results] == [2, 1]
    assert len(decision.records) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {name: number}
        for name in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
        for number in (0, 77)
    ],
)
def test_acl_filter_with_an_unknown_enum_value_is_refused_and_the_other_filters_are_applied(
    fields: dict[str, int],
) -> None:
    image = image_with(ORDERS)
    decision = delete_acls(image, delete.DeleteAclsRequest(filters=[selecting(**fields), selecting()]))
    refused, used = decision.reply.filter_results
    assert (refused.error_code, refused.matching_acls) == (ErrorCode.INVALID_REQUEST, [])
    assert (used.error_code, len(used.matching_acls), len(decision.records)) == (0, 1, 1)


def test_acl_filters_that_need_too_many_comparisons_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    image = image_with(*ALL)
    monkeypatch.setattr(acls, "MAX_COMPARISONS", 2 * len(ALL))

    def removed(*filters: delete.DeleteAclsFilter) -> int:
        return len(delete_acls(image, delete.DeleteAclsRequest(filters=list(filters))).records)

    assert removed(selecting(), selecting()) == len(ALL)
    assert removed(selecting(), selecting(), selecting(resource_name_filter="orders")) == len(ALL)
    with pytest.raises(KafkaError) as refused:
        removed(selecting(), selecting(), selecting())
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    monkeypatch.setattr(acls, "MAX_COMPARISONS", 1)
    assert removed(selecting()) == len(ALL)


def test_described_acls_are_grouped_by_their_resource_pattern() -> None:
    resources = described([ORDERS, GROUP, BOB, OR_PREFIX])
    assert [(each.resource_type, each.resource_name, len(each.acls)) for each in resources] == [
        (AclResource.TOPIC, "orders", 2),
        (AclResource.GROUP, "orders", 1),
        (AclResource.TOPIC, "or", 1),
    ]
    assert [each.principal for each in resources[0].acls] == ["User:ann", "User:bob"]
