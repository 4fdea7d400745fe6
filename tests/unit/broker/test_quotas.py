"""Tests how quotas are enforced: rates, precedence of entities, and shared rates."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.limits.mutations import Mutations
from penstock.broker.limits.quotas import NO_LIMIT, Quotas
from penstock.broker.limits.rates import THROTTLE_MAX_MS, Rate, TokenBucket, Window
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.encoded_responses import Encoded
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import MetadataImage, QuotaEntity
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchRequest, ReplicaState
from penstock.protocol.messages.api_19_create_topics import CreateTopicsResponse
from penstock.protocol.messages.api_56_alter_partition import AlterPartitionRequest
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest

USER, CLIENT, IP = "user", "client-id", "ip"
START = 1_700_000_000_000


def request(user: str = "u", client_id: str | None = "c", now_ms: int = START) -> RequestContext:
    connection = cast(Any, SimpleNamespace(principal=f"User:{user}"))
    return RequestContext(0, 0, 0, client_id, connection, now_ms)


def quotas(limits: dict[QuotaEntity, dict[str, float]]) -> Quotas:
    found = Quotas(Settings())
    found.apply_image(MetadataImage(client_quotas=limits))
    return found


# --- rates ----------------------------------------------------------------------------------------


def test_burst_as_large_as_the_quota_of_a_window_passes_and_the_next_byte_is_throttled() -> None:
    rate = Rate(100, Window(11, 1000))
    assert rate.record(1000, START) == 0
    assert rate.record(100, START) == 1000


def test_throttle_time_is_the_excess_rate_divided_by_the_quota_times_the_elapsed_time_of_the_window() -> None:
    rate = Rate(500, Window(11, 1000))
    assert not any(rate.record(400, START + second * 1000) for second in range(10))
    assert rate.record(2300, START + 10_500) == 2100


def test_client_with_a_steady_rate_below_its_quota_is_never_throttled() -> None:
    rate = Rate(100, Window(11, 1000))
    assert not any(rate.record(90, START + second * 1000) for second in range(60))


def test_client_with_twice_the_rate_of_its_quota_is_throttled_within_one_window() -> None:
    rate = Rate(100, Window(11, 1000))
    waits = [rate.record(200, START + second * 1000) for second in range(12)]
    assert waits[0] == 0
    assert waits[-1] > 0


def test_samples_older_than_the_quota_window_do_not_count_towards_the_rate() -> None:
    rate = Rate(100, Window(11, 1000))
    rate.record(5000, START)
    assert not rate.idle(START + 10_999)
    assert rate.idle(START + 11_000)
    assert rate.record(1000, START + 11_000) == 0


def test_client_is_not_throttled_because_the_clock_jumped_back() -> None:
    rate = Rate(100, Window(11, 1000))
    rate.record(5000, START)
    assert rate.record(10, START - 3_600_000) == 0


def test_parked_request_with_an_earlier_start_time_counts_in_the_current_quota_sample() -> None:
    rate = Rate(100, Window(11, 1000))
    rate.record(900, START + 5000)
    assert rate.record(200, START) == 1000
    assert not rate.idle(START)


def test_token_bucket_of_a_quota_keeps_its_tokens_when_the_clock_goes_back() -> None:
    bucket = TokenBucket(1, Window(11, 1000))
    bucket.take(11, START)
    assert bucket.take(1, START - 1000) == 1000
    assert bucket.take(0, START - 3_600_000) == 1000
    assert bucket.take(0, START - 3_600_000 + 1000) == 0


def test_forget_subtracts_a_recorded_amount_from_the_quota_rate() -> None:
    rate = Rate(100, Window(11, 1000))
    rate.record(2000, START)
    rate.forget(2000, START)
    assert rate.excess_ms(START) == 0


def test_quota_with_a_window_of_one_sample_throttles_until_the_window_ends() -> None:
    rate = Rate(100, Window(1, 1000))
    assert rate.record(100, START) == 0
    assert rate.record(100, START + 999) > 0
    assert rate.record(100, START + 2000) == 0


def test_a_token_bucket_starts_full_and_refills() -> None:
    bucket = TokenBucket(2, Window(11, 1000))
    assert bucket.take(22, START) == 0
    assert bucket.take(1, START) == 500
    assert bucket.excess_ms(START + 500) == 0
    assert not bucket.idle(START + 500)
    assert bucket.idle(START + 60_000)
    assert bucket.tokens == 22


# --- precedence of entities -----------------------------------------------------------------------

# Kafka's order: each limit is the place of its entity in it.
ORDER: list[QuotaEntity] = [
    ((CLIENT, "c"), (USER, "u")),
    ((CLIENT, None), (USER, "u")),
    ((USER, "u"),),
    ((CLIENT, "c"), (USER, None)),
    ((CLIENT, None), (USER, None)),
    ((USER, None),),
    ((CLIENT, "c"),),
    ((CLIENT, None),),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_quota_of_the_most_specific_entity_applies(first: int) -> None:
    limits = {entity: {"producer_byte_rate": float(place + 1)} for place, entity in enumerate(ORDER) if place >= first}
    meter = quotas(limits).produce.meter("User:u", "c")
    assert meter is not None
    assert meter.limit == first + 1


def test_a_quota_of_another_kind_or_client_does_not_apply() -> None:
    enforced = quotas({((USER, "other"),): {"producer_byte_rate": 1.0}, ((USER, "u"),): {"consumer_byte_rate": 1.0}})
    assert enforced.record_produce(request(), 10**9) == 0


def test_only_the_quota_of_the_user_applies_to_a_client_without_a_client_id() -> None:
    enforced = quotas({((CLIENT, None),): {"producer_byte_rate": 1.0}})
    assert enforced.record_produce(request(client_id=None), 10**9) == 0
    assert enforced.record_produce(request(client_id="x"), 10**9) > 0
    enforced = quotas({((USER, None),): {"producer_byte_rate": 1.0}})
    assert enforced.record_produce(request(client_id=None), 10**9) > 0


def test_a_users_quota_is_shared_by_its_clients() -> None:
    enforced = quotas({((USER, "u"),): {"producer_byte_rate": 100.0}})
    assert enforced.record_produce(request(client_id="c1"), 1000) == 0
    assert enforced.record_produce(request(client_id="c2"), 100) == 1000


def test_a_default_user_quota_applies_to_each_user_separately() -> None:
    enforced = quotas({((USER, None),): {"producer_byte_rate": 100.0}})
    assert enforced.record_produce(request(user="u1"), 1000) == 0
    assert enforced.record_produce(request(user="u2"), 1000) == 0


def test_quota_of_a_client_id_is_shared_by_all_users() -> None:
    enforced = quotas({((CLIENT, "c"),): {"producer_byte_rate": 100.0}})
    assert enforced.record_produce(request(user="u1"), 1000) == 0
    assert enforced.record_produce(request(user="u2"), 100) == 1000


def test_changed_quota_applies_at_once_to_the_amounts_already_counted() -> None:
    enforced = quotas({((USER, "u"),): {"producer_byte_rate": 100.0}})
    assert enforced.record_produce(request(), 1000) == 0
    enforced.apply_image(MetadataImage(client_quotas={((USER, "u"),): {"producer_byte_rate": 50.0}}))
    assert enforced.record_produce(request(), 0) == 10_000
    enforced.apply_image(MetadataImage(client_quotas={}))
    assert enforced.record_produce(request(), 10**9) == 0


# --- kinds ----------------------------------------------------------------------------------------


def test_no_request_is_throttled_if_there_are_no_quotas() -> None:
    enforced = quotas({})
    ctx = request()
    assert enforced.record_produce(ctx, 10**9) == 0
    assert enforced.record_fetch(ctx, 10**9) == 0
    assert enforced.record_request(ctx, 10**12) == 0
    mutations = Mutations(enforced, ctx, strict=True)
    mutations.charge(10**6)
    mutations.charge(10**6)
    assert mutations.throttle_ms == 0
    assert enforced.record_connection("10.0.0.1", START) == 0
    assert enforced.max_fetch_bytes(ctx) == NO_LIMIT


def test_throttled_fetch_gets_an_empty_response_and_its_bytes_are_not_counted() -> None:
    enforced = quotas({((USER, "u"),): {"consumer_byte_rate": 100.0}})
    assert enforced.max_fetch_bytes(request()) == 1000
    assert enforced.record_fetch(request(), 900) == 0
    assert enforced.record_fetch(request(), 600) == 5000
    assert enforced.record_fetch(request(), 100) == 0


def test_fetch_larger_than_a_whole_quota_window_is_not_throttled_if_it_is_the_first_in_the_window() -> None:
    enforced = quotas({((USER, "u"),): {"consumer_byte_rate": 100.0}})
    assert enforced.record_fetch(request(), 5000) == 0
    assert enforced.record_fetch(request(now_ms=START + 1), 1) > 0


def test_throttle_time_for_the_request_quota_is_at_most_as_long_as_one_quota_sample() -> None:
    enforced = quotas({((USER, "u"),): {"request_percentage": 10.0}})
    assert enforced.record_request(request(), 900_000_000) == 0
    assert enforced.record_request(request(), 200_000_000) == 1000
    assert enforced.record_request(request(), 60_000_000_000) == 1000


@dataclass
class Answer:
    throttle_time_ms: int = 0


@pytest.mark.parametrize(
    ("response", "told_ms", "muted_s"),
    [(Answer(), 1000, []), (Answer(5000), 5000, []), (Encoded(b"kept"), 0, [1.0]), (None, None, [1.0])],
)
def test_client_that_exceeds_its_request_quota_is_throttled_and_muted(
    response: Answer | Encoded | None, told_ms: int | None, muted_s: list[float]
) -> None:
    ticks = iter([0, 60_000_000_000])
    enforced = Quotas(Settings(), lambda: next(ticks))
    enforced.apply_image(MetadataImage(client_quotas={((USER, "u"),): {"request_percentage": 10.0}}))
    muted: list[float] = []
    ctx = request()
    ctx.connection = cast(Any, SimpleNamespace(principal="User:u", mute_for=muted.append))
    route = cast(Any, SimpleNamespace(handle=lambda broker, ctx, request: response, response=Answer))
    answered = Dispatcher(cast(Any, SimpleNamespace(quotas=enforced)))._handle_timed(route, ctx, None)
    assert answered is response
    assert getattr(answered, "throttle_time_ms", None) == told_ms
    assert muted == muted_s


@pytest.mark.parametrize(
    ("api_key", "sent", "is_node", "counts"),
    [
        (1, FetchRequest(), False, True),
        (1, FetchRequest(), True, False),
        (1, FetchRequest(replica_id=2), False, False),
        (1, FetchRequest(replica_state=ReplicaState(replica_id=2)), False, False),
        (56, AlterPartitionRequest(), False, False),
        (63, BrokerHeartbeatRequest(), False, True),
        (63, BrokerHeartbeatRequest(), True, False),
    ],
)
def test_requests_of_nodes_do_not_count_against_the_request_quota(
    api_key: int, sent: Any, is_node: bool, counts: bool
) -> None:
    ticks = iter([0, 60_000_000_000])
    enforced = Quotas(Settings(), lambda: next(ticks))
    enforced.apply_image(MetadataImage(client_quotas={((USER, None),): {"request_percentage": 10.0}}))
    policy = SimpleNamespace(is_node=lambda ctx: is_node)
    broker = SimpleNamespace(quotas=enforced, faults=SimpleNamespace(rules=()), fetch_policy=policy)
    route = cast(Any, SimpleNamespace(handle=lambda broker, ctx, request: Answer(), response=Answer))
    ctx = RequestContext(api_key, 0, 0, "broker-2", request().connection, START)
    answered = Dispatcher(cast(Any, broker))._handle(route, ctx, sent)
    assert (answered.throttle_time_ms > 0) == counts


def test_metadata_changes_are_throttled_or_refused_depending_on_the_request_version() -> None:
    enforced = quotas({((USER, "u"),): {"controller_mutation_rate": 1.0}})
    strict = Mutations(enforced, request(), strict=True)
    strict.charge(11)
    strict.charge(2)  # nothing was owed before, so that this change passes, as in Kafka
    assert strict.throttle_ms == 0
    with pytest.raises(KafkaError) as refused:
        strict.charge(1)
    assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert strict.throttle_ms == 2000
    permissive = Mutations(enforced, request(), strict=False)
    permissive.charge(1)
    assert permissive.throttle_ms == 3000
    Mutations(enforced, request(now_ms=START + 3000), strict=True).charge(1)


def test_connection_quota_limits_the_new_connections_of_each_address() -> None:
    enforced = quotas(
        {((IP, "localhost"),): {"connection_creation_rate": 1.0}, ((IP, None),): {"connection_creation_rate": 2.0}}
    )
    assert [enforced.record_connection("127.0.0.1", START) > 0 for _ in range(12)] == [False] * 10 + [True] * 2
    assert [enforced.record_connection("10.0.0.1", START) > 0 for _ in range(21)] == [False] * 20 + [True]
    assert enforced.record_connection("127.0.0.1", START + 11_000) == 0


@pytest.mark.parametrize("limit", [1e-7, 1e-200, 5e-324])
def test_throttle_time_of_a_tiny_quota_fits_the_field_of_the_response(limit: float) -> None:
    for meter in (TokenBucket(limit, Window()).take, Rate(limit, Window()).record):
        assert [meter(5, START), meter(5, START + 1000)] == [THROTTLE_MAX_MS] * 2
    assert encode(CreateTopicsResponse(throttle_time_ms=THROTTLE_MAX_MS), 7)


def test_quota_of_an_address_applies_to_all_spellings_of_the_address() -> None:
    enforced = quotas(
        {
            ((IP, "0:0:0:0:0:0:0:1"),): {"connection_creation_rate": 1.0},
            ((IP, "::ffff:10.0.0.1"),): {"connection_creation_rate": 1.0},
        }
    )
    assert [enforced.record_connection("::1", START) > 0 for _ in range(11)] == [False] * 10 + [True]
    assert [enforced.record_connection("10.0.0.1", START) > 0 for _ in range(10)] == [False] * 10
    assert enforced.record_connection("::ffff:a00:1", START) > 0


def test_quota_manager_keeps_a_bounded_number_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.limits.quotas.MAX_TRACKED", 5)
    enforced = quotas(
        {((CLIENT, None),): {"producer_byte_rate": 1.0}, ((IP, None),): {"connection_creation_rate": 1.0}}
    )
    for number in range(50):
        enforced.record_produce(request(client_id=f"c{number}"), 1)
        enforced.record_connection(f"10.0.0.{number}", START)
    assert len(enforced.produce._meters) <= 5
    assert len(enforced.produce._resolved) <= 5
    assert len(enforced.connection._meters) <= 5
