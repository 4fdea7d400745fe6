"""Tests that keys get the same partitions as with Kafka's own producer."""

from random import Random

import pytest

from penstock.client.partitioner import another_partition, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_hash_of_a_key_is_the_same_as_in_kafkas_producer(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (signed & 0x7FFFFFFF) % 7


def test_partitioner_never_chooses_the_same_partition_for_two_consecutive_batches_without_keys() -> None:
    random = Random(1)
    last = None
    for _ in range(100):
        chosen = another_partition(3, last, random)
        assert chosen in range(3)
        assert chosen != last
        last = chosen
    assert another_partition(1, 0, random) == 0
