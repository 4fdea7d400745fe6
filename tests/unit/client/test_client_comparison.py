"""Tests the comparison of a partition's replicas."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.client.comparison import (
    Comparison,
    Difference,
    Piece,
    Survivors,
    Target,
    _spans,
    at_rate,
    compare_pieces,
    compare_replicas,
    compare_share,
    digest_of,
    gathered,
    outline,
    shares,
)
from penstock.client.sync import Client
from penstock.records.batches import iter_batches
from penstock.records.build import build_batch
from penstock.testing import Broker


def pieces(*spans: tuple[int, int, bytes]) -> list[Piece]:
    return [Piece(first, last, digest) for first, last, digest in spans]


LEADER = pieces((0, 4, b"a"), (5, 9, b"b"), (10, 10, b"c"))


def found(own: list[Piece]) -> tuple[int, str] | None:
    difference = compare_pieces(2, (0, 99), own, LEADER)
    assert difference is None or isinstance(difference, Difference)
    return None if difference is None else (difference.offset, difference.what)


def test_equal_replicas_have_no_difference_and_the_same_digest() -> None:
    assert found(list(LEADER)) is None
    assert digest_of(list(LEADER)) == digest_of(LEADER)


def test_first_difference_between_a_replica_and_its_leader_is_reported_with_its_offset() -> None:
    assert found(pieces((0, 4, b"a"), (5, 9, b"x"), (10, 10, b"y"))) == (5, "other bytes than the leader's")
    assert found(pieces((0, 4, b"a"), (5, 9, b"b"))) == (10, "records of the leader are missing")
    assert found([*LEADER, Piece(11, 12, b"d")]) == (11, "records that the leader doesn't have")
    assert found(pieces((0, 4, b"a"), (5, 7, b"b"), (8, 10, b"c"))) == (
        5,
        "offsets 5 to 7 where the leader has 5 to 9",
    )


def test_replicas_with_different_batch_boundaries_have_different_digests() -> None:
    assert digest_of(pieces((0, 1, b"a"))) != digest_of(pieces((0, 2, b"a")))


def test_replica_comparison_splits_the_log_into_ranges_at_multiples_of_the_range_size() -> None:
    assert _spans(3, 25, 10) == [(3, 10), (10, 20), (20, 25)]
    assert _spans(10, 20, 10) == [(10, 20)]


def test_replicas_of_a_compacted_topic_are_compared_by_the_last_record_of_each_key() -> None:
    full, compacted = Survivors(), Survivors()
    records = [(1, b"a", b"1", ()), (2, b"b", b"1", ()), (3, b"a", b"2", ()), (4, b"b", None, ())]
    full.take(memoryview(build_batch(records)))
    compacted.take(memoryview(build_batch([(3, b"a", b"2", ())], base_offset=2)))
    assert digest_of(full.pieces()) == digest_of(compacted.pieces())
    other = Survivors()
    other.take(memoryview(build_batch([(3, b"a", b"3", ())], base_offset=2)))
    assert digest_of(other.pieces()) != digest_of(compacted.pieces())


# --- in parts -------------------------------------------------------------------------------------------------------


def target(client: Client) -> Target:
    [found] = client.metadata(["t"]).topics
    leader = found.partitions[0].leader_id
    return Target(("t", 0), found.topic_id, leader, (leader,), compacted=False)


def outlined(client: Client) -> Comparison:
    return client.run(outline(client.asynchronous, target(client), at_rate(None)))


def test_digest_of_a_replica_comparison_does_not_depend_on_its_division_into_tasks() -> None:
    with Broker(topics={"t": 1}) as broker, broker.client() as client:
        with client.producer() as producer:
            for first in range(0, 98, 7):  # batches extend from one range into the next
                producer.send_many("t", [(b"k", b"v%d" % n, (), None) for n in range(first, first + 7)])
                producer.flush()
        client.delete_records({("t", 0): 3})  # the first range begins before the log start
        whole = client.run(compare_replicas(client.asynchronous, target(client), range_offsets=10, paced=at_rate(None)))
        assert (whole.first, whole.end, whole.ranges) == (3, 98, 10)
        for most_ranges in (1, 3, 10):
            found = outlined(client)
            parts = shares(target(client), found, range_offsets=10, most_ranges=most_ranges)
            assert len(parts) == -(-10 // most_ranges)
            tasks = list(enumerate(parts))
            random.Random(most_ranges).shuffle(tasks)
            done = {at: client.run(compare_share(client.asynchronous, part, at_rate(None))) for at, part in tasks}
            assert gathered(found, [done[at] for at in sorted(done)]).digest == whole.digest


def test_records_that_retention_deletes_during_a_comparison_are_not_compared() -> None:
    with Broker(topics={"t": 1}) as broker, broker.client() as client:
        with client.producer() as producer:
            producer.send_many("t", [(b"k", b"v%d" % n, (), None) for n in range(50)])
            producer.flush()
            producer.send_many("t", [(b"k", b"v%d" % n, (), None) for n in range(50)])
        found = outlined(client)
        parts = shares(target(client), found, range_offsets=10, most_ranges=2)
        client.delete_records({("t", 0): 55})
        done = [client.run(compare_share(client.asynchronous, part, at_rate(None))) for part in parts]
        assert [len(each.digests) for each in done] == [0, 0, 1, 2, 2]
        assert gathered(found, done).first == 55
        again = outlined(client)
        assert (again.first, again.end) == (55, 100)


def test_comparison_finds_a_damaged_batch_even_if_the_broker_refuses_to_return_it(tmp_path: Path) -> None:
    with Broker(data=tmp_path, topics={"t": 1}) as broker:
        with broker.client() as client, client.producer() as producer:
            for first in range(0, 60, 5):
                producer.send_many("t", [(b"k", b"v%d" % n, (), None) for n in range(first, first + 5)])
                producer.flush()
        broker.stop()
        [log] = tmp_path.glob("**/t-0/*.log")
        data = bytearray(log.read_bytes())
        batches = list(iter_batches(bytes(data), allow_partial=True))
        data[sum(len(batch) for _, batch in batches[:6]) - 1] ^= 1
        log.write_bytes(data)
        broker.start()
        with broker.client() as client:
            work = compare_replicas(client.asynchronous, target(client), range_offsets=100, paced=at_rate(None))
            [difference] = client.run(work).differences
    assert (difference.offset, difference.what) == (batches[5][0].base_offset, "damaged: its checksum is wrong")
