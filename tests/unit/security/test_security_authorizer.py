"""Tests the authorizer against tables of Kafka's rules, and against a model that scans all ACLs for each check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.requests.access_control import AccessControl
from penstock.metadata.image import AclImage, MetadataImage
from penstock.security.authorizer import Authorizer, parse_super_users
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

TOPIC, GROUP = AclResource.TOPIC, AclResource.GROUP
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
HOST = "127.0.0.1"


def acl(
    name: str = "orders",
    operation: Operation = READ,
    *,
    principal: str = "User:ann",
    deny: bool = False,
    prefixed: bool = False,
    host: str = "*",
    resource: AclResource = TOPIC,
) -> AclImage:
    return AclImage(
        resource,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal,
        host,
        operation,
        Permission.DENY if deny else Permission.ALLOW,
    )


def allows(acls: Sequence[AclImage], operation: Operation = READ, name: str = "orders", **options: object) -> bool:
    return Authorizer(acls, **options).allows("User:ann", HOST, operation, TOPIC, name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl()], True),
        ([acl(principal="User:bob")], False),
        ([acl(principal="User:*")], True),
        ([acl(host=HOST)], True),
        ([acl(host="10.0.0.1")], False),
        ([acl("*")], True),
        ([acl("ord", prefixed=True)], True),
        ([acl("ord")], False),
        ([acl("orders-eu", prefixed=True)], False),
        ([acl(operation=ALL)], True),
        ([acl(operation=WRITE)], False),
        ([acl(), acl("*", deny=True)], False),
        ([acl(), acl("o", deny=True, prefixed=True)], False),
        ([acl(), acl(deny=True, operation=ALL)], False),
        ([acl(), acl(deny=True, operation=WRITE)], True),
        ([acl(), acl(deny=True, principal="User:*")], False),
        ([acl(), acl(deny=True, host="10.0.0.1")], True),
        ([acl(resource=GROUP)], False),
    ],
)
def test_read_of_a_topic_is_allowed_only_by_a_matching_acl_without_a_deny(acls: list[AclImage], allowed: bool) -> None:
    assert allows(acls) is allowed


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER, DESCRIBE, ALL])
def test_allow_acl_for_read_or_write_implies_describe_but_a_deny_acl_does_not_deny_describe(
    operation: Operation,
) -> None:
    assert allows([acl(operation=operation)], DESCRIBE)
    denied = operation in (DESCRIBE, ALL)
    assert allows([acl(operation=DESCRIBE), acl(operation=operation, deny=True)], DESCRIBE) is not denied


def test_alter_configs_implies_describe_configs_and_not_describe() -> None:
    acls = [acl(operation=Operation.ALTER_CONFIGS)]
    assert allows(acls, Operation.DESCRIBE_CONFIGS)
    assert not allows(acls, DESCRIBE)


def test_super_user_is_allowed_despite_every_deny_acl() -> None:
    assert allows([acl("*", ALL, principal="User:*", deny=True)], super_users=frozenset({"User:ann"}))


def test_resource_without_acls_is_open_only_if_allow_everyone_if_no_acl_found_is_set() -> None:
    assert allows([], allow_without_acls=True)
    assert not allows([acl(principal="User:bob")], allow_without_acls=True)
    assert allows([acl("other")], allow_without_acls=True)
    assert not allows([acl("*", principal="User:bob")], allow_without_acls=True)


def test_user_may_write_to_some_topic_unless_deny_acls_cover_all_allowed_topics() -> None:
    def any_write(*acls: AclImage) -> bool:
        return Authorizer(acls).allows_any("User:ann", HOST, WRITE, TOPIC)

    allowed = acl(operation=WRITE)
    assert any_write(allowed)
    assert not any_write()
    assert not any_write(acl(operation=READ))
    assert not any_write(allowed, acl("*", WRITE, deny=True))
    assert not any_write(allowed, acl(operation=WRITE, deny=True))
    assert not any_write(allowed, acl("or", WRITE, deny=True, prefixed=True))
    assert any_write(allowed, acl("orders-eu", WRITE, deny=True, prefixed=True))
    assert any_write(acl("or", WRITE, prefixed=True), acl("orders", WRITE, deny=True))
    assert not any_write(acl("orders", WRITE, prefixed=True), acl("or", ALL, deny=True, prefixed=True))


def test_permission_to_write_to_some_topic_changes_with_added_and_removed_acls() -> None:
    authorizer = Authorizer()
    question = ("User:ann", HOST, WRITE, TOPIC)
    allowed = acl(operation=WRITE)
    assert not authorizer.allows_any(*question)
    authorizer.change([allowed], [])
    assert authorizer.allows_any(*question)
    authorizer.change([], [allowed])
    assert not authorizer.allows_any(*question)


def test_authorized_operations_are_returned_as_a_bit_field() -> None:
    bits = Authorizer([acl(operation=WRITE)]).operations("User:ann", HOST, TOPIC, "orders")
    assert bits == 1 << WRITE | 1 << DESCRIBE


def test_names_in_the_super_users_property_are_separated_by_semicolons_and_may_have_commas() -> None:
    assert parse_super_users("User:CN=a,O=b; User:admin;") == {"User:CN=a,O=b", "User:admin"}
    with pytest.raises(ValueError, match="'admin'"):
        parse_super_users("admin")


NAMES = st.sampled_from(("a", "ab", "abc", "b", "ba", "*"))
PRINCIPALS = st.sampled_from(("User:ann", "User:bob", "User:*"))
ACLS = st.builds(
    AclImage,
    st.sampled_from((TOPIC, GROUP)),
    NAMES,
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    PRINCIPALS,
    st.sampled_from(("*", HOST, "10.0.0.1")),
    st.sampled_from((ALL, READ, WRITE, DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)),
    st.sampled_from((Permission.ALLOW, Permission.DENY)),
)


@pytest.mark.parametrize(
    ("written", "peer"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0::00A", "2001:db8::a"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
    ],
)
def test_acl_for_an_address_applies_to_all_spellings_of_the_address(written: str, peer: str) -> None:
    denied = acl(deny=True, host=written)
    authorizer = Authorizer([acl(), denied])
    assert not authorizer.allows("User:ann", peer, READ, TOPIC, "orders")
    assert not authorizer.allows_any("User:ann", peer, READ, TOPIC)
    assert authorizer.allows("User:ann", "2001:db8::b", READ, TOPIC, "orders")
    authorizer.change([], [denied])
    assert authorizer.allows("User:ann", peer, READ, TOPIC, "orders")


def model(acls: Sequence[AclImage], principal: str, operation: Operation, name: str, allow_without_acls: bool) -> bool:
    """Decides by a scan of all ACLs, with the rules of Kafka's documentation."""

    def covers(each: AclImage) -> bool:
        if each.pattern_type == PatternType.PREFIXED:
            return name.startswith(each.resource_name)
        return each.resource_name in (name, "*")

    on_resource = [each for each in acls if each.resource_type == TOPIC and covers(each)]
    if not on_resource:
        return allow_without_acls
    mine = [each for each in on_resource if each.principal in (principal, "User:*") and each.host in ("*", HOST)]
    implied = {
        DESCRIBE: {DESCRIBE, READ, WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS},
    }.get(operation, {operation})
    if any(each.permission_type == Permission.DENY and each.operation in (operation, ALL) for each in mine):
        return False
    return any(each.permission_type == Permission.ALLOW and each.operation in {*implied, ALL} for each in mine)


@given(
    st.lists(ACLS, max_size=12),
    PRINCIPALS,
    st.sampled_from((READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS)),
    NAMES,
    st.booleans(),
)
def test_authorizer_index_gives_the_same_results_as_a_scan_of_all_acls(
    acls: list[AclImage], principal: str, operation: Operation, name: str, allow_without_acls: bool
) -> None:
    authorizer = Authorizer(acls, allow_without_acls=allow_without_acls)
    expected = model(acls, principal, operation, name, allow_without_acls)
    for _ in range(2):  # the second answer is a kept one
        assert authorizer.allows(principal, HOST, operation, TOPIC, name) is expected


def test_authorization_with_ten_thousand_acls_takes_microseconds() -> None:
    acls = [acl(f"topic-{number}", principal=f"User:{number % 500}") for number in range(8_000)]
    acls += [acl(f"team-{number}-", prefixed=True) for number in range(2_000)]
    authorizer = Authorizer(acls)
    questions = [("User:7", f"topic-{number}") for number in range(2_000)] * 5
    began = time.thread_time()
    for principal, name in questions:
        authorizer.allows(principal, HOST, READ, TOPIC, name)
    assert (time.thread_time() - began) / len(
        questions
    ) < 20e-6  # measured: about 1 µs; the bound allows a loaded machine


@given(st.lists(ACLS, max_size=8), st.data(), NAMES.filter(lambda name: name != "*"), PRINCIPALS, st.booleans())
def test_authorizer_after_acl_changes_gives_the_same_results_as_a_new_authorizer(
    acls: list[AclImage], data: st.DataObject, name: str, principal: str, without: bool
) -> None:
    removed = data.draw(st.lists(st.sampled_from(acls), unique_by=id)) if acls else []
    added = data.draw(st.lists(ACLS, max_size=4))
    kept = list(acls)
    for one in removed:
        kept.remove(one)
    changed = Authorizer(acls, allow_without_acls=without)
    for operation in (READ, DESCRIBE):  # fills the cache, which the change has to clear
        changed.allows(principal, HOST, operation, TOPIC, name)
        changed.allows_any(principal, HOST, operation, TOPIC)
    changed.change(added, removed)
    made = Authorizer([*kept, *added], allow_without_acls=without)
    for operation in (READ, WRITE, DESCRIBE):
        question = (principal, HOST, operation, TOPIC)
        assert changed.allows(*question, name) == made.allows(*question, name)
        assert changed.allows_any(*question) == made.allows_any(*question)


def test_adding_or_removing_one_acl_among_fifty_thousand_takes_little_time() -> None:
    acls = {str(number).encode(): acl(f"topic-{number}") for number in range(50_000)}
    access = AccessControl(super_users=frozenset(), allow_without_acls=False)
    image = MetadataImage(acls=acls)
    access.apply_image(None, image)
    more = replace(image, acls={**acls, b"more": acl("more")})
    took = []
    for old, new in ((image, more), (more, image)) * 3:
        began = time.thread_time()
        access.apply_image(old, new)
        took.append(time.thread_time() - began)
    assert min(took) < 0.05
