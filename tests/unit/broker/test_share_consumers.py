"""Tests share groups over connections to one node: deliveries, acknowledgements, sessions, refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any

import pytest
from share_client import client_of, configure, consumer, produce, run, settle, take, values

from penstock.client.client import AsyncClient
from penstock.client.producer import Producer, ProducerSettings
from penstock.client.share_consumer import ShareConsumer
from penstock.node.clock import SystemClock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_78_share_fetch as fetching
from penstock.protocol.messages import api_79_share_acknowledge as acknowledging
from penstock.protocol.messages import api_90_describe_share_group_offsets as describing
from penstock.protocol.messages import api_91_alter_share_group_offsets as altering
from penstock.protocol.messages import api_92_delete_share_group_offsets as deleting
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_16_list_groups import ListGroupsRequest
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.api_77_share_group_describe import ShareGroupDescribeRequest
from penstock.protocol.uuid import uuid_to_str
from penstock.protocol.vocabulary import Acknowledge
from penstock.testing import Broker

LOCK_MS = 1000
ACCEPT, RELEASE, REJECT, RENEW = Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.REJECT, Acknowledge.RENEW
PROPERTIES = {
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
    "group.share.record.lock.duration.ms": "30000",
    "group.share.max.share.sessions": "4",
}


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker(config=PROPERTIES) as broker:
        yield broker


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")[:200]
    node.create_topics({name: 1})
    return name


def test_two_consumers_of_a_share_group_get_records_of_one_partition(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, *(str(number) for number in range(20)))
            async with consumer(node, topic, max_records=10, strict=True) as one:
                first = await take(one, 10)
                async with consumer(node, topic, max_records=10, strict=True) as other:
                    second = await take(other, 10)
                    assert await settle(other, second) == [ErrorCode.NONE]
                assert await settle(one, first) == [ErrorCode.NONE]
            assert sorted(values(first + second), key=int) == [str(number) for number in range(20)]
            async with consumer(node, topic) as late:
                while not late.assignment:
                    await late.poll()
                assert await late.poll() == []

    run(scenario)


def test_released_record_is_delivered_again_and_a_rejected_record_is_not(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            await configure(client, topic)
            await produce(client, topic, "a", "b", "c")
            records = await take(member, 3)
            assert await settle(member, records[:1]) == [ErrorCode.NONE]
            assert await settle(member, records[1:2], REJECT) == [ErrorCode.NONE]
            assert await settle(member, records[2:], RELEASE) == [ErrorCode.NONE]
            again = await take(member, 1)
            assert values(again) == ["c"]
            assert again[0].deliveries == 2

    run(scenario)


def test_released_record_is_delivered_again_after_its_back_off_and_does_not_delay_other_records(
    node: Broker, topic: str
) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic, max_records=1, strict=True) as member:
            await configure(client, topic, penstock_share_retry_backoff_ms="500")
            await produce(client, topic, "a", "b")
            first, before = await take(member, 1), monotonic()
            assert await settle(member, first, RELEASE) == [ErrorCode.NONE]
            other = await take(member, 1)
            assert values(other) == ["b"]
            assert await settle(member, other) == [ErrorCode.NONE]
            [again] = await take(member, 1)
            assert (again.record.offset, again.deliveries) == (0, 2)
            assert monotonic() - before >= 0.5

    run(scenario)


def test_record_whose_lock_expires_is_delivered_again_until_it_reaches_its_delivery_limit(
    node: Broker, topic: str
) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            await configure(client, topic, share_record_lock_duration_ms=str(LOCK_MS), share_delivery_count_limit="2")
            await produce(client, topic, "a")
            counts = [each.deliveries for each in [*await take(member, 1), *await take(member, 1)]]
            assert counts == [1, 2]
            await produce(client, topic, "b")
            assert values(await take(member, 1)) == ["b"]
            answer = await settle(member, await take(member, 1), RELEASE)
            assert answer == [ErrorCode.NONE]

    run(scenario)


def test_records_of_a_closed_connection_are_released_without_counting_a_delivery(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, "a")
            async with AsyncClient(f"{node.host}:{node.port}") as dying:
                member = ShareConsumer(dying, topic, [topic])
                await member.start()
                assert (await take(member, 1))[0].deliveries == 1
                assert member._beating is not None
                member._beating.cancel()
            async with consumer(node, topic) as other:
                assert (await take(other, 1))[0].deliveries == 1

    run(scenario)


def test_renewed_lock_keeps_a_record_with_its_member(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            await configure(client, topic)
            await produce(client, topic, "a", "b")
            records = await take(member, 2)
            assert await settle(member, records, RENEW) == [ErrorCode.NONE]
            assert await settle(member, records) == [ErrorCode.NONE]
            assert await settle(member, records) == [ErrorCode.NONE], "records before the start offset are done"

    run(scenario)


def test_share_group_offsets_are_described_altered_and_deleted(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, *"abcde")
            async with consumer(node, topic) as member:
                records = await take(member, 5)
                await settle(member, [records[0], records[1], records[3]])
                part = await offset_of(client, topic)
                assert (part.start_offset, part.lag) == (2, 2)
                assert await alter(client, topic, 0) is ErrorCode.NON_EMPTY_GROUP
            assert await alter(client, topic, 1) is ErrorCode.NONE
            assert (await offset_of(client, topic)).start_offset == 1
            async with consumer(node, topic) as member:
                assert values(await take(member, 4)) == list("bcde")
            deletion = deleting.DeleteShareGroupOffsetsRequest(
                group_id=topic, topics=[deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
            )
            answer = await client.ask_coordinator(topic, deletion)
            assert not answer.error_code
            assert not answer.responses[0].error_code
            async with consumer(node, topic) as member:
                assert values(await take(member, 5)) == list("abcde")

    run(scenario)


async def offset_of(client: AsyncClient, topic: str) -> Any:
    asked = describing.DescribeShareGroupOffsetsRequestGroup(group_id=topic, topics=None)
    answer = await client.ask_coordinator(topic, describing.DescribeShareGroupOffsetsRequest(groups=[asked]))
    assert not answer.groups[0].error_code
    return answer.groups[0].topics[0].partitions[0]


async def alter(client: AsyncClient, topic: str, offset: int) -> ErrorCode:
    part = altering.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
    wanted = altering.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[part])
    answer = await client.ask_coordinator(
        topic, altering.AlterShareGroupOffsetsRequest(group_id=topic, topics=[wanted])
    )
    code = ErrorCode(answer.error_code)
    return code or ErrorCode(answer.responses[0].partitions[0].error_code)


def test_a_share_group_is_listed_described_and_deleted(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, "a")
            async with consumer(node, topic) as member:
                await settle(member, await take(member, 1))
                answer = await client.ask_coordinator(topic, ShareGroupDescribeRequest(group_ids=[topic]))
                described = answer.groups[0]
                assert (described.group_state, described.assignor_name, len(described.members)) == (
                    "Stable",
                    "simple",
                    1,
                )
            listed = await client.request(ListGroupsRequest(types_filter=["share"]))
            assert topic in [group.group_id for group in listed.groups]
            answer = await client.ask_coordinator(topic, DeleteGroupsRequest(groups_names=[topic]))
            assert not answer.results[0].error_code
            async with consumer(node, topic) as member:
                assert values(await take(member, 1)) == ["a"], "the deleted group's offsets are gone"

    run(scenario)


async def delete(client: AsyncClient, topic: str) -> ErrorCode:
    answer = await client.ask_coordinator(topic, DeleteGroupsRequest(groups_names=[topic]))
    return ErrorCode(answer.results[0].error_code)


async def reset(client: AsyncClient, topic: str) -> ErrorCode:
    return await alter(client, topic, 0)


def test_alter_share_group_offsets_with_a_repeated_partition_or_a_negative_offset_is_refused(
    node: Broker, topic: str
) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await produce(client, topic, *"abc")
            assert await alter(client, topic, -5) is ErrorCode.INVALID_REQUEST
            parts = [
                altering.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=2 - each // 2000)
                for each in range(4000)
            ]
            wanted = altering.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=parts)
            request = altering.AlterShareGroupOffsetsRequest(group_id=topic, topics=[wanted])
            answer = await client.ask_coordinator(topic, request)
            codes = [ErrorCode(each.error_code) for each in answer.responses[0].partitions]
            assert codes == [ErrorCode.NONE] + [ErrorCode.INVALID_REQUEST] * 3999
            assert (await offset_of(client, topic)).start_offset == 2

    run(scenario)


@pytest.mark.parametrize("change", [delete, reset])
def test_share_session_left_open_by_a_former_member_does_not_restore_the_old_state_of_its_group(
    node: Broker, topic: str, change: Callable[[AsyncClient, str], Awaitable[ErrorCode]]
) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, client_of(node) as former:
            await configure(client, topic)
            await produce(client, topic, *"abc")
            await former.topic(topic)
            async with consumer(node, topic) as member:
                assert await settle(member, await take(member, 3)) == [ErrorCode.NONE]
                assert not (await fetch(former, topic, topic, 0, member_id="former")).error_code
            assert await change(client, topic) is ErrorCode.NONE
            async with consumer(node, topic) as member:
                assert values(await take(member, 3)) == list("abc")

    run(scenario)


def test_deleted_records_are_not_delivered_to_a_share_group(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            from penstock.client.admin import Admin

            await configure(client, topic)
            await produce(client, topic, *"abcde")
            records = await take(member, 5)
            await settle(member, records[1:], RELEASE)
            await Admin(client).delete_records({(topic, 0): 3})
            assert values(await take(member, 2)) == ["d", "e"]
            assert (await settle(member, records[:1])) == [ErrorCode.NONE], "deleted records count as done"

    run(scenario)


def test_read_committed_share_group_skips_aborted_records(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            await configure(client, topic, share_isolation_level="read_committed")
            producer = Producer(client, SystemClock(), ProducerSettings(transactional_id=topic))
            await producer.start()
            for value, commits in (("a", True), ("b", False), ("c", True)):
                producer.begin()
                await producer.send(topic, value.encode(), partition=0)
                await (producer.commit() if commits else producer.abort())
            records = await take(member, 2)
            assert values(records) == ["a", "c"]
            assert await settle(member, records) == [ErrorCode.NONE]
            assert await member.poll() == []
            producer.begin()
            await producer.send(topic, b"d", partition=0)
            await producer.flush()
            assert await member.poll() == [], "the transaction is open"
            await producer.commit()
            assert values(await take(member, 1)) == ["d"]
            await producer.close()

    run(scenario)


def test_share_fetch_does_not_park_while_it_skips_aborted_records(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic, share_isolation_level="read_committed")
            async with consumer(node, topic) as first:
                while not first.assignment:
                    await first.poll()
            producer = Producer(client, SystemClock(), ProducerSettings(transactional_id=topic))
            await producer.start()
            for _ in range(20):
                producer.begin()
                await producer.send(topic, b"aborted", partition=0)
                await producer.abort()
            await producer.close()
            await produce(client, topic, "good")
            await client.topic(topic)
            # One batch or marker is read in each round.
            answer = await fetch(client, topic, topic, 0, max_wait_ms=10_000, min_bytes=1, max_bytes=1)
            acquired = answer.responses[0].partitions[0].acquired_records
            assert [(each.first_offset, each.last_offset) for each in acquired] == [(40, 40)]

    run(scenario)


# --- bad input


async def fetch(client: AsyncClient, group: str, topic: str, epoch: int, *batches: Any, **fields: Any) -> Any:
    fields.setdefault("member_id", "m")
    part = fetching.FetchPartition(partition_index=0, acknowledgement_batches=list(batches))
    wanted = fetching.FetchTopic(topic_id=client.cluster.topic_id(topic), partitions=[part])
    request = fetching.ShareFetchRequest(
        group_id=group, share_session_epoch=epoch, max_records=10, batch_size=10, topics=[wanted], **fields
    )
    return await client.request(request, channel="share")


def answer_of(*types: int, first: int = 0, last: int = 0) -> Any:
    return fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


def test_share_session_refuses_wrong_epochs_and_the_number_of_share_sessions_is_limited(
    node: Broker, topic: str
) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, "a")
            await client.topic(topic)
            codes = [
                ErrorCode((await fetch(client, topic, topic, each)).error_code).name for each in (1, -1, 0, 2, 1, 1)
            ]
            assert codes == [
                "SHARE_SESSION_NOT_FOUND",
                "SHARE_SESSION_NOT_FOUND",
                "NONE",
                "INVALID_SHARE_SESSION_EPOCH",
                "NONE",
                "INVALID_SHARE_SESSION_EPOCH",
            ]
            refused = await fetch(client, topic, topic, 0, answer_of(ACCEPT))
            assert ErrorCode(refused.error_code) is ErrorCode.INVALID_REQUEST
            acknowledge = acknowledging.ShareAcknowledgeRequest(group_id=topic, member_id="m", share_session_epoch=0)
            answer = await client.request(acknowledge, channel="share")
            assert ErrorCode(answer.error_code) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
            for number in range(3):
                assert not (await fetch(client, topic, topic, 0, member_id=f"n{number}")).error_code
            full = await fetch(client, topic, topic, 0, member_id="one too many")
            assert ErrorCode(full.error_code) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
            assert not (await fetch(client, topic, topic, -1)).error_code
            assert not (await fetch(client, topic, topic, 0, member_id="one less")).error_code

    run(scenario)


def test_share_fetch_with_two_entries_for_a_partition_applies_the_acknowledgements_of_both(
    node: Broker, topic: str
) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, *"abc")
            async with consumer(node, topic) as first:
                while not first.assignment:
                    await first.poll()
            await client.topic(topic)
            epoch = await acquire(client, topic, "m", 3)
            parts = [
                fetching.FetchPartition(partition_index=0, acknowledgement_batches=[answer_of(ACCEPT, first=n, last=n)])
                for n in (0, 1)
            ]
            wanted = fetching.FetchTopic(topic_id=client.cluster.topic_id(topic), partitions=parts)
            request = fetching.ShareFetchRequest(
                group_id=topic, member_id="m", share_session_epoch=epoch, max_records=0, topics=[wanted]
            )
            answer = await client.request(request, channel="share")
            assert [each.acknowledge_error_code for each in answer.responses[0].partitions] == [0]
            assert (await offset_of(client, topic)).start_offset == 2

    run(scenario)


def test_share_session_keeps_a_limited_number_of_unknown_partitions(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await client.topic(topic)

            async def ask(epoch: int, count: int) -> Any:
                parts = [fetching.FetchPartition(partition_index=1 + each) for each in range(count)]
                wanted = fetching.FetchTopic(topic_id=client.cluster.topic_id(topic), partitions=parts)
                request = fetching.ShareFetchRequest(
                    group_id=topic, member_id="m", share_session_epoch=epoch, max_records=10, topics=[wanted]
                )
                return await client.request(request, channel="share")

            first = await ask(0, 3000)
            codes = {ErrorCode(each.error_code) for each in first.responses[0].partitions}
            assert (codes, len(first.responses[0].partitions)) == ({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, 3000)
            assert len((await ask(1, 0)).responses[0].partitions) == 1000
            assert ErrorCode((await ask(2, 10_001)).error_code) is ErrorCode.INVALID_REQUEST
            assert not (await ask(2, 0)).error_code

    run(scenario)


def test_share_acknowledge_with_too_many_partitions_is_refused(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await client.topic(topic)
            assert not (await fetch(client, topic, topic, 0)).error_code
            for count, code in ((2000, ErrorCode.NONE), (10_001, ErrorCode.INVALID_REQUEST)):
                parts = [acknowledging.AcknowledgePartition(partition_index=1 + each) for each in range(count)]
                wanted = acknowledging.AcknowledgeTopic(topic_id=client.cluster.topic_id(topic), partitions=parts)
                request = acknowledging.ShareAcknowledgeRequest(
                    group_id=topic, member_id="m", share_session_epoch=1, topics=[wanted]
                )
                answer = await client.request(request, channel="share")
                assert ErrorCode(answer.error_code) is code
                codes = [ErrorCode(part.error_code) for each in answer.responses for part in each.partitions]
                assert codes == ([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * count if code is ErrorCode.NONE else [])

    run(scenario)


async def acknowledge(client: AsyncClient, topic: str, epoch: int, member: str, *batches: Any, **fields: Any) -> Any:
    acks = [
        acknowledging.AcknowledgementBatch(
            first_offset=each.first_offset, last_offset=each.last_offset, acknowledge_types=each.acknowledge_types
        )
        for each in batches
    ]
    part = acknowledging.AcknowledgePartition(partition_index=0, acknowledgement_batches=acks)
    wanted = acknowledging.AcknowledgeTopic(topic_id=client.cluster.topic_id(topic), partitions=[part])
    request = acknowledging.ShareAcknowledgeRequest(
        group_id=topic, member_id=member, share_session_epoch=epoch, topics=[wanted], **fields
    )
    answer = await client.request(request, channel="share")
    assert not answer.error_code
    return ErrorCode(answer.responses[0].partitions[0].error_code)


async def acquire(client: AsyncClient, topic: str, member: str, count: int) -> int:
    """Fetches until the member holds `count` records. Returns the epoch of its next request."""
    epoch = held = 0
    while held < count:
        answer = await fetch(client, topic, topic, epoch, member_id=member, max_wait_ms=200)
        assert not answer.error_code
        for part in (part for each in answer.responses for part in each.partitions):
            held += sum(each.last_offset - each.first_offset + 1 for each in part.acquired_records)
        epoch += 1
    return epoch


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([answer_of(ACCEPT, first=1, last=0)], ErrorCode.INVALID_REQUEST),
        ([answer_of(ACCEPT, last=1), answer_of(ACCEPT, first=1, last=1)], ErrorCode.INVALID_RECORD_STATE),
        ([answer_of(ACCEPT, first=2, last=2), answer_of(ACCEPT, first=0, last=0)], ErrorCode.INVALID_REQUEST),
        ([answer_of()], ErrorCode.INVALID_REQUEST),
        ([answer_of(ACCEPT, ACCEPT, last=2)], ErrorCode.INVALID_REQUEST),
        ([answer_of(5)], ErrorCode.INVALID_REQUEST),
        ([answer_of(-1)], ErrorCode.INVALID_REQUEST),
        ([answer_of(RENEW)], ErrorCode.INVALID_REQUEST),
        ([answer_of(ACCEPT, first=0, last=7)], ErrorCode.INVALID_REQUEST),
        ([answer_of(ACCEPT), answer_of(ACCEPT, first=2, last=3)], ErrorCode.INVALID_RECORD_STATE),
    ],
    ids=["reversed", "overlap", "out-of-order", "none", "some", "unknown", "negative", "renewal", "beyond", "not-held"],
)
def test_invalid_share_acknowledgements_are_refused_and_change_no_record(
    node: Broker, topic: str, batches: list[Any], code: ErrorCode
) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, *"abcd")
            async with consumer(node, topic) as first:
                while not first.assignment:
                    await first.poll()
            await client.topic(topic)
            epoch = await acquire(client, topic, "m", 4)
            free = await acknowledge(client, topic, epoch, "m", answer_of(RELEASE, first=3, last=3))
            assert free is ErrorCode.NONE
            assert await acknowledge(client, topic, epoch + 1, "m", *batches) is code
            held = answer_of(ACCEPT, RELEASE, REJECT, last=2)
            assert await acknowledge(client, topic, epoch + 2, "m", held) is ErrorCode.NONE

    run(scenario)


def test_share_acknowledgement_before_a_fetch_or_for_an_unknown_topic_is_refused(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await client.topic(topic)
            answer = await fetch(client, "nobody", topic, 0)
            code = ErrorCode(answer.responses[0].partitions[0].error_code)
            assert code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE)
            unknown = fetching.FetchTopic(topic_id=bytes(15) + b"\x09", partitions=[fetching.FetchPartition()])
            request = fetching.ShareFetchRequest(
                group_id="nobody", member_id="m", share_session_epoch=1, max_records=1, topics=[unknown]
            )
            answer = await client.request(request, channel="share")
            codes = {ErrorCode(part.error_code) for each in answer.responses for part in each.partitions}
            assert ErrorCode.UNKNOWN_TOPIC_ID in codes
            with pytest.raises(KafkaError) as refused:
                await ShareConsumer(client, "", [topic]).start()
            assert refused.value.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_GROUP_ID)

    run(scenario)


def test_find_coordinator_finds_the_share_coordinator(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client:
            await client.topic(topic)
            good = f"group:{uuid_to_str(client.cluster.topic_id(topic))}:0"
            request = FindCoordinatorRequest(key_type=2, coordinator_keys=[good, "bad"])
            found = (await client.request(request, version=6)).coordinators
            assert [ErrorCode(each.error_code) for each in found] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]

    run(scenario)
