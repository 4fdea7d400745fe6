"""Tests client telemetry: subscriptions of clients, and accepted and refused pushes."""

from collections.abc import Mapping
from random import Random
from time import thread_time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.handlers import (
    api_18_api_versions,
    api_71_get_telemetry_subscriptions,
    api_72_push_telemetry,
)
from penstock.broker.requests.context import RequestContext
from penstock.broker.telemetry import Payload, Telemetry
from penstock.metadata.configs.client_metrics import Subscription
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.api_71_get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from penstock.protocol.messages.api_72_push_telemetry import PushTelemetryRequest
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import ResourceType

START = 1_700_000_000_000
ID = b"i" * 16


def request(now_ms: int = START, client_id: str | None = "app-1", software: str = "java") -> RequestContext:
    connection = SimpleNamespace(
        principal="User:u", peer_host="10.0.0.1", peer_port=5000, state={"software": (software, "4.3.1")}
    )
    return RequestContext(71, 0, 0, client_id, cast(Any, connection), now_ms)


def telemetry(**subscriptions: dict[str, str]) -> Telemetry:
    found = Telemetry(max_bytes=1000, random=Random(1))
    found.set_subscriptions(subscriptions)
    return found


def push(
    found: Telemetry,
    subscription_id: int,
    *,
    now_ms: int = START,
    instance_id: bytes = ID,
    terminating: bool = False,
    compression: int = 4,
    metrics: bytes = b"otlp",
) -> str:
    """Pushes metrics and returns the name of the error."""
    try:
        found.push(
            request(now_ms),
            instance_id,
            subscription_id,
            terminating=terminating,
            compression=compression,
            metrics=metrics,
        )
    except KafkaError as error:
        return error.code.name
    return "NONE"


def test_client_without_an_instance_id_gets_a_permanent_instance_id() -> None:
    found = telemetry()
    first, _ = found.subscribe(request(), ZERO_UUID)
    second, _ = found.subscribe(request(), ZERO_UUID)
    assert ZERO_UUID not in (first, second)
    assert first != second
    assert found.subscribe(request(), ID)[0] == ID


@pytest.mark.parametrize(
    ("match", "asked"),
    [
        ("", True),
        ("client_id=app-.*", True),
        ("client_id=app", False),
        ("client_software_name=java,client_software_version=4\\..*", True),
        ("client_software_name=java,client_id=other", False),
        ("client_source_address=10\\.0\\.0\\.1,client_source_port=5000", True),
        (f"client_instance_id={'aWlpaWlpaWlpaWlpaWlpaQ'}", True),
    ],
)
def test_client_matches_a_telemetry_subscription_only_if_all_patterns_match_whole_values(
    match: str, asked: bool
) -> None:
    _, instance = telemetry(s={"metrics": "a", "match": match}).subscribe(request(), ID)
    assert instance.metrics == (("a",) if asked else ())


@pytest.mark.usefixtures("no_collections")
def test_telemetry_pattern_that_takes_too_many_steps_matches_no_client() -> None:
    """Checks patterns that would take years in Python's `re`: the time doubles with each of sixty characters."""
    started = thread_time()
    for number, match in enumerate(["client_id=(a+)+b", "client_id=(a|a)*b", "client_id=.*a.{990}"]):
        found = telemetry(s={"metrics": "a", "match": match})
        assert found.subscribe(request(client_id="a" * 60), bytes([number]) * 16)[1].metrics == ()
        assert found.subscribe(request(client_id="a" * 1024), bytes([100 + number]) * 16)[1].metrics == ()
    assert thread_time() - started < 1


def test_missing_or_too_long_client_id_matches_no_telemetry_pattern() -> None:
    found = telemetry(s={"metrics": "a", "match": "client_id=.*"})
    assert found.subscribe(request(client_id=None), ID)[1].metrics == ()
    assert found.subscribe(request(client_id="x" * 2000), b"j" * 16)[1].metrics == ()


def test_telemetry_subscriptions_are_merged_and_the_shortest_interval_applies() -> None:
    found = telemetry(
        one={"metrics": "b,a", "interval.ms": "60000"}, two={"metrics": "a,c", "interval.ms": "1000"}, three={}
    )
    _, instance = found.subscribe(request(), ID)
    assert (instance.metrics, instance.interval_ms) == (("a", "b", "c"), 1000)
    found.set_subscriptions({"all": {"metrics": "a,*", "interval.ms": "3600000"}})
    _, instance = found.subscribe(request(), ID)
    assert (instance.metrics, instance.interval_ms) == (("*",), 300_000)


def test_telemetry_subscription_id_depends_only_on_client_instance_and_metrics_and_interval() -> None:
    same = {"s": {"metrics": "a,b", "interval.ms": "1000"}}
    one = telemetry(**same).subscribe(request(), ID)[1].subscription_id
    assert telemetry(**same).subscribe(request(client_id="x"), ID)[1].subscription_id == one
    assert telemetry(s={"metrics": "b,a", "interval.ms": "1000"}).subscribe(request(), ID)[1].subscription_id == one
    assert telemetry(**same).subscribe(request(), b"j" * 16)[1].subscription_id != one
    assert telemetry(s={"metrics": "a", "interval.ms": "1000"}).subscribe(request(), ID)[1].subscription_id != one
    assert -(2**31) <= one < 2**31


def test_early_second_telemetry_subscription_request_is_refused_unless_the_subscription_changed() -> None:
    found = telemetry(s={"metrics": "a", "interval.ms": "1000"})
    found.subscribe(request(), ID)
    with pytest.raises(KafkaError) as refused:
        found.subscribe(request(START + 999), ID)
    assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    found.subscribe(request(START + 1000), ID)
    found.set_subscriptions({"s": {"metrics": "b", "interval.ms": "1000"}})
    assert found.subscribe(request(START + 1001), ID)[1].metrics == ("b",)


def test_telemetry_push_before_the_interval_ends_is_refused_unless_it_is_the_first_push() -> None:
    found = telemetry(s={"metrics": "a", "interval.ms": "1000"})
    number = found.subscribe(request(), ID)[1].subscription_id
    assert push(found, number, now_ms=START + 1) == "NONE"
    assert push(found, number, now_ms=START + 500) == "THROTTLING_QUOTA_EXCEEDED"
    assert push(found, number, now_ms=START + 1001) == "NONE"
    assert found.instances[ID].pushes == 2
    assert found.instances[ID].last_payload_bytes == 4


def test_telemetry_push_after_the_terminating_push_is_refused() -> None:
    found = telemetry(s={"metrics": "a", "interval.ms": "1000"})
    number = found.subscribe(request(), ID)[1].subscription_id
    assert push(found, number) == "NONE"
    assert push(found, number, terminating=True) == "NONE"
    assert push(found, number, now_ms=START + 5000) == "INVALID_REQUEST"


@pytest.mark.parametrize("instance_id", [ZERO_UUID, bytes(15) + b"\x01"])
def test_telemetry_push_with_a_reserved_instance_id_is_refused(instance_id: bytes) -> None:
    assert push(telemetry(), 0, instance_id=instance_id) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("wrong", "metrics", "compression", "error"),
    [
        (1, b"x", 0, "UNKNOWN_SUBSCRIPTION_ID"),
        (0, b"x", 5, "UNSUPPORTED_COMPRESSION_TYPE"),
        (0, b"x" * 1001, 0, "TELEMETRY_TOO_LARGE"),
        (0, b"x" * 1000, 0, "NONE"),
        (0, b"", 0, "NONE"),
    ],
)
def test_telemetry_push_with_a_wrong_subscription_or_compression_or_size_is_refused(
    wrong: int, metrics: bytes, compression: int, error: str
) -> None:
    found = telemetry(s={"metrics": "a"})
    number = found.subscribe(request(), ID)[1].subscription_id
    assert push(found, number + wrong, metrics=metrics, compression=compression) == error


def test_telemetry_push_for_an_outdated_subscription_is_refused() -> None:
    found = telemetry(s={"metrics": "a"})
    number = found.subscribe(request(), ID)[1].subscription_id
    found.set_subscriptions({"s": {"metrics": "b"}})
    assert push(found, number) == "UNKNOWN_SUBSCRIPTION_ID"


def test_pushed_telemetry_payload_reaches_every_receiver_unchanged() -> None:
    found = telemetry()
    got: list[Payload] = []
    found.receivers = [got.append, got.append]
    number = found.subscribe(request(), ID)[1].subscription_id
    push(found, number, metrics=b"otlp")
    assert got == [Payload(ID, "app-1", 4, False, b"otlp")] * 2


def test_client_gets_an_error_if_a_telemetry_receiver_fails(caplog: pytest.LogCaptureFixture) -> None:
    def broken(payload: Payload) -> None:
        raise ValueError("disk full")

    found = telemetry()
    found.receivers = [broken]
    number = found.subscribe(request(), ID)[1].subscription_id
    assert push(found, number) == "INVALID_RECORD"
    assert "receiver failed" in caplog.text


def test_telemetry_client_instances_expire_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = telemetry(s={"metrics": "a", "interval.ms": "1000"})
    found.subscribe(request(), ID)
    found.subscribe(request(START + 60_001), b"j" * 16)
    assert list(found.instances) == [b"j" * 16]
    monkeypatch.setattr("penstock.broker.telemetry.MAX_INSTANCES", 3)
    for number in range(10):
        found.subscribe(request(START + 60_001), bytes([number + 2]) * 16)
    assert len(found.instances) == 3


def test_telemetry_subscriptions_come_from_the_image_and_invalid_subscriptions_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = telemetry()
    image = MetadataImage(
        configs={
            (ResourceType.CLIENT_METRICS, "good"): {"metrics": "a"},
            (ResourceType.CLIENT_METRICS, "bad"): {"match": "["},
            (ResourceType.TOPIC, "t"): {"retention.ms": "1"},
        }
    )
    found.apply_image(MetadataImage(), image)
    assert found.subscribe(request(), ID)[1].metrics == ("a",)
    assert "bad is ignored" in caplog.text


def test_telemetry_handlers_return_subscriptions_and_accept_or_refuse_pushes() -> None:
    broker = cast(Any, SimpleNamespace(telemetry=telemetry(s={"metrics": "a", "interval.ms": "1000"})))
    response = api_71_get_telemetry_subscriptions.handle(broker, request(), GetTelemetrySubscriptionsRequest())
    assert response.error_code == 0
    assert response.accepted_compression_types == [4, 3, 1, 2]
    assert (response.push_interval_ms, response.telemetry_max_bytes, response.delta_temporality) == (1000, 1000, True)
    assert response.requested_metrics == ["a"]
    again = GetTelemetrySubscriptionsRequest(client_instance_id=response.client_instance_id)
    assert api_71_get_telemetry_subscriptions.handle(broker, request(), again).error_code == 89
    pushed = PushTelemetryRequest(
        client_instance_id=response.client_instance_id, subscription_id=response.subscription_id, metrics=b"x"
    )
    assert api_72_push_telemetry.handle(broker, request(), pushed).error_code == 0
    assert api_72_push_telemetry.handle(broker, request(), PushTelemetryRequest()).error_code == 42


def advertised(found: Telemetry) -> set[int]:
    broker = SimpleNamespace(
        telemetry=found,
        metadata=SimpleNamespace(image=MetadataImage()),
        controller_listeners=frozenset(),
        settings=Settings(),
    )
    ctx = request()
    ctx.connection.listener = SimpleNamespace(name="PLAINTEXT")  # type: ignore[assignment]
    asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    return {each.api_key for each in api_18_api_versions.handle(cast(Any, broker), ctx, asked).api_keys}


def test_telemetry_is_advertised_only_if_the_broker_has_a_telemetry_receiver() -> None:
    found = telemetry(all={"metrics": ""})
    assert not advertised(found) & {71, 72}
    found.receivers.append(lambda _: None)
    assert advertised(found) >= {71, 72}


def test_client_keeps_its_telemetry_instance_id_at_another_broker() -> None:
    first, second = telemetry(), Telemetry(max_bytes=1000, random=Random(2))
    given, _ = first.subscribe(request(), ZERO_UUID)
    assert given != ZERO_UUID
    later = START + 10_000_000
    assert first.subscribe(request(later), given)[0] == given
    assert second.subscribe(request(later), given)[0] == given


def test_unchanged_telemetry_subscription_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    whole = Subscription.from_map

    def from_map(name: str, values: Mapping[str, str]) -> Subscription:
        parsed.append(name)
        return whole(name, values)

    monkeypatch.setattr(Subscription, "from_map", from_map)
    match = {"metrics": "a", "match": "client_id=" + "a" * 900}
    found = telemetry(s=match, t=match)
    found.set_subscriptions({"s": match, "t": {"metrics": "b"}, "u": {"match": "client_id=["}})
    found.set_subscriptions({"s": dict(match), "t": {"metrics": "b"}, "u": {"match": "client_id=["}})
    assert parsed == ["s", "t", "t", "u"]
    assert found.subscribe(request(client_id="a" * 900), ID)[1].metrics == ("a", "b")
