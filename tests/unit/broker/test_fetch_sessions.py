import random

import pytest

from penstock.broker.fetch.fetch_sessions import EVICTION_MS, FetchSession, FetchSessions, Wanted
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NOW = 1_000_000


def request(
    session_id: int = 0, epoch: int = -1, topics: dict[str, list[int]] | None = None, forget: str | None = None
) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(topic=name, partitions=[FetchPartition(partition=p, fetch_offset=10 * p) for p in partitions])
            for name, partitions in (topics or {}).items()
        ],
        forgotten_topics_data=[ForgottenTopic(topic=forget, partitions=[0])] if forget else [],
    )


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, random.Random(1))


def opened(cache: FetchSessions, topics: dict[str, list[int]], now_ms: int = NOW) -> FetchSession:
    session, _, incremental = cache.open(request(0, 0, topics), now_ms)
    assert session is not None
    assert not incremental
    return session


def keys(wanted: object) -> list[tuple[str, int]]:
    return [(w.topic, w.partition) for w in wanted if isinstance(w, Wanted)]  # type: ignore[attr-defined]


def test_fetch_with_session_epoch_minus_one_uses_no_session() -> None:
    cache = sessions()
    session, wanted, incremental = cache.open(request(0, -1, {"a": [0, 1]}), NOW)
    assert session is None
    assert not incremental
    assert keys(wanted) == [("a", 0), ("a", 1)]
    assert len(cache) == 0


def test_an_incremental_fetch_reads_all_partitions_of_the_session() -> None:
    cache = sessions()
    session = opened(cache, {"a": [0, 1]})
    again, wanted, incremental = cache.open(request(session.id, 1, {"b": [0]}), NOW)
    assert again is session
    assert incremental
    assert keys(wanted) == [("a", 0), ("a", 1), ("b", 0)]
    assert session.epoch == 2


def test_partitions_that_a_fetch_forgets_leave_the_fetch_session() -> None:
    cache = sessions()
    session = opened(cache, {"a": [0, 1]})
    _, wanted, _ = cache.open(request(session.id, 1, forget="a"), NOW)
    assert keys(wanted) == [("a", 1)]


def test_fetch_with_a_repeated_or_skipped_session_epoch_is_refused() -> None:
    cache = sessions()
    session = opened(cache, {"a": [0]})
    for epoch in (2, 7):
        with pytest.raises(KafkaError) as refused:
            cache.open(request(session.id, epoch), NOW)
        assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_fetch_with_an_unknown_session_id_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        sessions().open(request(77, 1), NOW)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_full_cache_evicts_only_a_fetch_session_that_was_idle_long_enough() -> None:
    cache = sessions(slots=1)
    first = opened(cache, {"a": [0]})
    none, _, _ = cache.open(request(0, 0, {"b": [0]}), NOW + EVICTION_MS - 1)
    assert none is None
    second = opened(cache, {"b": [0]}, NOW + EVICTION_MS)
    assert len(cache) == 1
    with pytest.raises(KafkaError):
        cache.open(request(first.id, 1), NOW + EVICTION_MS)
    assert cache.open(request(second.id, 1), NOW + EVICTION_MS)[0] is second


def test_partitions_that_returned_data_move_to_the_end_of_their_fetch_session() -> None:
    cache = sessions()
    session = opened(cache, {"a": [0, 1, 2]})
    session.rotate([next(iter(session.partitions.values()))])
    _, wanted, _ = cache.open(request(session.id, 1), NOW)
    assert keys(wanted) == [("a", 1), ("a", 2), ("a", 0)]


def test_fetch_session_refuses_a_mix_of_topic_ids_and_names() -> None:
    cache = sessions()
    session = opened(cache, {"a": [0]})
    mixed = request(session.id, 1)
    mixed.topics = [FetchTopic(topic_id=bytes(15) + b"\7", partitions=[FetchPartition(partition=0)])]
    with pytest.raises(KafkaError) as refused:
        cache.open(mixed, NOW)
    assert refused.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_fetch_session_epoch_restarts_at_1_after_the_largest_possible_epoch() -> None:
    session = opened(sessions(), {"a": [0]})
    session.epoch = 0x7FFFFFFF
    session.advance()
    assert session.epoch == 1


def bounded(max_partitions: int) -> FetchSessions:
    return FetchSessions(10, random.Random(1), max_partitions)


def test_client_gets_no_fetch_session_when_the_partition_limit_of_all_sessions_is_reached() -> None:
    cache = bounded(5)
    first = opened(cache, {"a": [0, 1, 2]})
    session, wanted, _ = cache.open(request(0, 0, {"b": [0, 1, 2]}), NOW)
    assert session is None
    assert len(list(wanted)) == 3  # it is answered without a session
    assert (len(cache), cache.partitions) == (1, 3)
    session, _, _ = cache.open(request(0, 0, {"b": list(range(6))}), NOW + 2 * EVICTION_MS)
    assert session is None  # larger than the whole limit: no session is evicted for it
    assert len(cache) == 1
    cache.open(request(first.id, 0, {"b": [0, 1, 2, 3]}), NOW)  # replaces its own session
    assert (len(cache), cache.partitions) == (1, 4)


def test_fetch_session_that_grows_beyond_the_partition_limit_is_dropped() -> None:
    cache = bounded(5)
    session = opened(cache, {"a": [0, 1, 2]})
    with pytest.raises(KafkaError) as refused:
        cache.open(request(session.id, 1, {"b": [0, 1, 2]}), NOW)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache), cache.partitions) == (0, 0)


def test_idle_fetch_sessions_are_evicted_to_make_room_for_the_partitions_of_a_new_session() -> None:
    cache = bounded(5)
    opened(cache, {"a": [0, 1]})
    opened(cache, {"b": [0, 1]})
    session = opened(cache, {"c": [0, 1, 2, 3]}, NOW + EVICTION_MS)
    assert (len(cache), cache.partitions) == (1, 4)
    cache.open(request(session.id, 1, {}, forget="c"), NOW + EVICTION_MS)
    assert cache.partitions == 3
    cache.open(request(session.id, -1), NOW + EVICTION_MS)
    assert (len(cache), cache.partitions) == (0, 0)
