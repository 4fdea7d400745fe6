"""Tests the batches of the metadata log as bytes: damage, incomplete ends, and sets of voters."""

from __future__ import annotations

import pytest
from raft_cluster import voter

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.raft.batches import encode_own, parse_batches, voter_set_of, voters_record
from penstock.raft.events import LeaderChange, VotersChange
from penstock.raft.voters import Voter, VoterHistory, VoterSet

ONE = Voter(1, voter(1).directory_id, (("CONTROLLER", "one.example", 9093), ("OTHER", "two.example", 9094)))
VOTERS = VoterSet.of([voter(2), ONE])


def change(epoch: int = 4) -> bytes:
    return encode_own(VotersChange(VOTERS), epoch=epoch, timestamp=7)


def leads() -> bytes:
    return encode_own(LeaderChange(1, (1, 2), (1,)), epoch=4, timestamp=7)


def test_every_damaged_byte_after_the_checksum_of_a_batch_is_refused() -> None:
    data = leads()
    for place in range(21, len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(KafkaError) as error:
            parse_batches(bytes(damaged))
        assert error.value.code is ErrorCode.CORRUPT_MESSAGE


def test_damage_in_the_second_batch_is_refused_too() -> None:
    data = bytearray(leads() + change())
    data[-1] ^= 1
    with pytest.raises(KafkaError):
        parse_batches(bytes(data))


def test_incomplete_batch_at_the_end_is_left_out() -> None:
    first, second = leads(), change()
    for length in range(len(second)):
        (found,) = parse_batches(first + second[:length])
        assert found.voters is None
    assert [each.voters for each in parse_batches(first + second)] == [None, VOTERS]
    assert [each.epoch for each in parse_batches(first + change(epoch=6))] == [4, 6]


def test_set_of_voters_survives_its_record_with_all_endpoints() -> None:
    assert voter_set_of(voters_record(VOTERS)) == VOTERS
    assert voter_set_of(voters_record(VoterSet())) == VoterSet()
    features = {
        (each.kraft_version_feature.min_supported_version, each.kraft_version_feature.max_supported_version)
        for each in voters_record(VOTERS).voters
    }
    assert features == {(0, 1)}


def test_voter_prefers_the_endpoint_of_a_listener_and_keeps_the_others_in_order() -> None:
    endpoints = (("A", "a", 1), ("B", "b", 2), ("C", "c", 3))
    voter_ = Voter(1, endpoints=endpoints)
    for listener, expected in (("A", "ABC"), ("B", "BAC"), ("C", "CAB"), ("D", "ABC"), (None, "ABC")):
        assert "".join(name for name, _, _ in voter_.preferring(listener).endpoints) == expected


def test_changed_set_of_voters_differs_in_exactly_one_voter() -> None:
    voters = VoterSet.of(map(voter, (3, 1, 2)))
    assert voters.ids == (1, 2, 3)
    assert voters.added(voter(0)).ids == (0, 1, 2, 3)
    assert voters.removed(voter(2).key).ids == (1, 3)
    assert voters.removed(Voter(2).key) == voters, "another directory"
    moved = Voter(2, voter(2).directory_id, (("C", "elsewhere", 1),))
    assert voters.updated(moved).voters == (voter(1), moved, voter(3))
    assert [len(VoterSet.of(map(voter, range(size)))) // 2 + 1 for size in range(6)] == [
        VoterSet.of(map(voter, range(size))).majority for size in range(6)
    ]


def test_lone_voter_is_known_by_its_id_and_its_directory() -> None:
    for listed, alone in (
        (voter(1), True),
        (Voter(1), True),
        (Voter(1, b"another directo."), False),
        (voter(2), False),
    ):
        assert VoterSet.of([listed]).is_only(voter(1).key) is alone
        assert VoterSet.of([listed]).has(voter(1).key) is alone
        assert VoterSet.of([listed, voter(3)]).is_only(voter(1).key) is False


def test_history_of_voters_after_a_snapshot_answers_as_before_for_all_later_offsets() -> None:
    sets = [VoterSet.of(map(voter, range(1, size + 1))) for size in range(1, 6)]
    for forgotten in range(12):
        full, short = VoterHistory(sets[0]), VoterHistory(sets[0])
        for history in (full, short):
            for offset, voters in zip((2, 5, 6, 9), sets[1:]):
                history.record(offset, voters)
        short.forget_before(forgotten)
        for end in range(forgotten, 12):
            assert short.before(end) == full.before(end)
            assert short.since(end) == full.since(end)
        assert (short.latest, short.latest_offset) == (full.latest, full.latest_offset)
