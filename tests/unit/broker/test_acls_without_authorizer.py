"""Tests ACL requests to a node without an authorizer: responses as in Apache Kafka 4.3.1."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.handlers.api_18_api_versions import api_keys
from penstock.broker.handlers.registry import load_handler, served_versions
from penstock.net.later import settled
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_29_describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.protocol.messages.api_31_delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse

DISABLED = ErrorCode.SECURITY_DISABLED


def answer(api_key: int, version: int, request: Any, response_class: type[Any]) -> Any:
    broker = SimpleNamespace(access=None)
    response = asyncio.run(settled(load_handler(api_key)(broker, None, request)))
    return decode(response_class, version, encode(response, version))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_acl_request_gets_security_disabled_without_an_authorizer(version: int) -> None:
    described = answer(29, version, DescribeAclsRequest(), DescribeAclsResponse)
    assert (described.error_code, described.resources) == (DISABLED, [])
    assert "No authorizer is configured" in described.error_message
    created = answer(30, version, CreateAclsRequest(creations=[AclCreation(), AclCreation()]), CreateAclsResponse)
    assert [each.error_code for each in created.results] == [DISABLED, DISABLED]
    assert answer(30, version, CreateAclsRequest(), CreateAclsResponse).results == []
    deleted = answer(31, version, DeleteAclsRequest(filters=[DeleteAclsFilter()]), DeleteAclsResponse)
    assert [(each.error_code, each.matching_acls) for each in deleted.filter_results] == [(DISABLED, [])]


@pytest.mark.parametrize("role", ["BROKER", "CONTROLLER"])
def test_acl_apis_are_advertised_on_all_listeners_even_without_an_authorizer(role: Any) -> None:
    told = {each.api_key: (each.min_version, each.max_version) for each in api_keys(role)}
    assert {key: told[key] for key in (29, 30, 31)} == {29: (1, 3), 30: (1, 3), 31: (1, 3)}
    assert served_versions(29, role) == range(1, 4)
