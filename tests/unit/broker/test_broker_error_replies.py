"""Tests the error responses of every API, and how requests are split and responses changed for fault rules."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.requests.error_replies import Target, error_response, merge, overwrite, split, targets
from penstock.net.reply import CLOSE
from penstock.protocol.apis import APIS, request_class, response_class
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_50_describe_user_scram_credentials as describe
from penstock.protocol.messages import api_51_alter_user_scram_credentials as scram
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest
from penstock.protocol.schema import Struct

CODE = ErrorCode.NOT_CONTROLLER
SAMPLES: dict[str, Any] = {"string": "x", "uuid": b"u" * 16}


def filled(struct: type[Struct], version: int) -> Any:
    """Returns a message with one item in every array, so that its error response has items with error codes."""
    made = struct()
    for field in struct.FIELDS:
        if field.exists_in(version) and field.kind == "array":
            item = field.item
            setattr(made, field.name, [filled(item, version) if isinstance(item, type) else SAMPLES.get(item, 3)])
    return made


def error_codes(struct: Any) -> set[int]:
    found = set()
    for field in type(struct).FIELDS:
        value = getattr(struct, field.name)
        if field.name.endswith("error_code"):
            found.add(value)
        elif field.kind == "array" and isinstance(field.item, type):
            for item in value or ():
                found |= error_codes(item)
    return found


@pytest.mark.parametrize("api_key", APIS)
def test_every_api_and_version_has_an_error_response(api_key: int) -> None:
    api = APIS[api_key]
    for version in range(api.min_version, api.max_version + 1):
        request = filled(request_class(api_key), version)
        if api_key == 0:
            request.acks = -1
        response = error_response(api_key, version, request, CODE, "why")
        if response is CLOSE:
            assert (api.name, version) in {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}, "no other lacks a place"
            continue
        read = decode(response_class(api_key), version, encode(response, version))  # type: ignore[arg-type]
        assert CODE in error_codes(read)


def produce(*wanted: tuple[str, list[int]]) -> ProduceRequest:
    return ProduceRequest(
        acks=-1,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=p, records=b"r") for p in partitions]
            )
            for topic, partitions in wanted
        ],
    )


def is_t0(target: Target) -> bool:
    return target.topic == "t" and target.partition == 0


def test_produce_error_response_contains_every_requested_partition() -> None:
    response: Any = error_response(0, 9, produce(("t", [0, 2]), ("u", [1])), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    said = [(t.name, p.index, p.error_code, p.base_offset) for t in response.responses for p in t.partition_responses]
    assert said == [("t", 0, 6, -1), ("t", 2, 6, -1), ("u", 1, 6, -1)]


def test_error_response_to_a_change_of_scram_users_names_each_user_once() -> None:
    set_eve = scram.ScramCredentialUpsertion(name="eve", mechanism=1)
    removals = [scram.ScramCredentialDeletion(name=name, mechanism=2) for name in ("eve", "bob")]
    for request, users in (
        (scram.AlterUserScramCredentialsRequest(upsertions=[set_eve]), ["eve"]),
        (scram.AlterUserScramCredentialsRequest(deletions=removals, upsertions=[set_eve]), ["bob", "eve"]),
    ):
        response: Any = error_response(51, 0, request, CODE, "no")
        assert [(each.user, each.error_code, each.error_message) for each in response.results] == [
            (user, CODE, "no") for user in users
        ]


def test_error_response_to_a_description_of_scram_users_has_the_error_at_the_top_level_too() -> None:
    request = describe.DescribeUserScramCredentialsRequest(users=[describe.UserName(name="eve")])
    response: Any = error_response(50, 0, request, CODE, "no")
    assert [response.error_code, *(each.error_code for each in response.results)] == [CODE, CODE]


def test_fetch_session_error_is_the_top_level_error_code_of_the_response() -> None:
    response: Any = error_response(1, 12, filled(FetchRequest, 12), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert (response.error_code, response.responses) == (70, [])


def test_targets_of_a_request_are_its_topics_and_partitions() -> None:
    named = targets(produce(("t", [0, 2]), ("u", [])), 9)
    assert named == [Target("t", None, 0), Target("t", None, 2), Target("u", None, None)]
    assert targets(DeleteTopicsRequest(topic_names=["a", "b"]), 5) == [Target("a", None, None), Target("b", None, None)]
    assert targets(MetadataRequest(topics=None), 9) == []


def test_request_is_split_into_partitions_that_match_a_fault_rule_and_other_partitions() -> None:
    kept, hit = split(produce(("t", [0, 1]), ("u", [0])), 9, is_t0)
    assert targets(kept, 9) == [Target("t", None, 1), Target("u", None, 0)]
    assert targets(hit, 9) == [Target("t", None, 0)]
    assert kept.topic_data[0].partition_data[0].records == b"r"


def test_request_is_not_split_if_all_its_partitions_match_the_fault_rule() -> None:
    kept, hit = split(produce(("t", [0])), 9, is_t0)
    assert kept is None
    assert hit is not None


def test_merged_response_of_a_split_request_lists_all_partitions_under_their_topic() -> None:
    served: Any = error_response(0, 9, produce(("t", [1]), ("u", [0])), ErrorCode.NONE)
    refused: Any = error_response(0, 9, produce(("t", [0])), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    merged = merge(served, refused, 9)
    said = [(t.name, [(p.index, p.error_code) for p in t.partition_responses]) for t in merged.responses]
    assert said == [("t", [(1, 0), (0, 6)]), ("u", [(0, 0)])]


def test_error_fault_in_a_fetch_response_drops_only_the_records_of_matching_partitions() -> None:
    partitions = [PartitionData(partition_index=p, high_watermark=9, records=b"data") for p in (0, 1)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    assert overwrite(response, 12, ErrorCode.OFFSET_OUT_OF_RANGE, is_t0)
    hit, other = response.responses[0].partitions
    assert (hit.partition_index, hit.error_code, hit.records) == (0, 1, None)
    assert (other.partition_index, other.error_code, other.records) == (1, 0, b"data")


def test_error_fault_in_a_metadata_response_sets_the_error_code_of_the_topic() -> None:
    response = MetadataResponse(topics=[MetadataResponseTopic(name="t"), MetadataResponseTopic(name="u")])
    assert overwrite(response, 9, ErrorCode.LEADER_NOT_AVAILABLE, lambda target: target.topic == "t")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("t", 5), ("u", 0)]
