"""Implements client telemetry (KIP-714): the subscriptions of clients, and the metrics that they push.

- A client instance is matched against the client metrics resources of the cluster. Its subscription has an id that
  every broker computes the same way.
- The client must push with this id, must wait for its interval between pushes, and must not push again after its
  terminating push.
- Payloads (OTLP, possibly compressed) go unchanged to `receivers`. Without receivers, telemetry is not advertised to
  clients, and only the size of pushed payloads is kept.
- The number of client instances and their lifetime are limited; the least recently used instances are dropped first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from penstock.metadata.configs.client_metrics import ALL_METRICS, DEFAULT_INTERVAL_MS, Subscription
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.image import MetadataImage
from penstock.metadata.names import random_uuid
from penstock.metadata.patterns import Work
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import METADATA_TOPIC_ID, ZERO_UUID, uuid_to_str
from penstock.protocol.vocabulary import ResourceType
from penstock.records.batches import crc32c
from penstock.records.compression import Codec

if TYPE_CHECKING:
    from penstock.broker.requests.context import RequestContext

logger = logging.getLogger(__name__)

MAX_INSTANCES = 16_384
MIN_EXPIRY_MS = 60_000
# Longer client ids and software names are never matched with patterns, because any client may send them.
MAX_MATCHED_LENGTH = 1_024
# Most preferred first.
ACCEPTED_COMPRESSION = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
RESERVED_IDS = frozenset({ZERO_UUID, METADATA_TOPIC_ID})


@dataclass(frozen=True, slots=True)
class Payload:
    """Holds metrics that a client pushed: OTLP bytes in the given compression."""

    client_instance_id: bytes
    client_id: str | None
    compression: int
    terminating: bool
    metrics: bytes


Receiver = Callable[[Payload], None]


@dataclass(slots=True)
class Instance:
    """Holds one client instance (a client process with its client instance id), and its last subscription."""

    attributes: Mapping[str, str]
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    version: int
    last_get_ms: int = 0
    last_push_ms: int = 0
    seen_ms: int = 0
    terminating: bool = False
    pushes: int = 0
    last_payload_bytes: int = 0

    def may_get(self, now_ms: int) -> bool:
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def may_push(self, now_ms: int) -> bool:
        """Returns True if the client may push now.

        The first push may be early, because clients delay it by a random part of the interval.
        """
        if self.last_get_ms <= self.last_push_ms and now_ms - self.last_push_ms < self.interval_ms:
            return False
        self.last_push_ms = now_ms
        return True


class Telemetry:
    def __init__(self, max_bytes: int, random: Random) -> None:
        self.max_bytes = max_bytes
        self.receivers: list[Receiver] = []
        self.instances: OrderedDict[bytes, Instance] = OrderedDict()
        self._random = random
        self._resources: Mapping[str, Mapping[str, str]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0

    def apply_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Takes over the client metrics resources of the image. Each client is matched again at its next request."""
        if old.configs is not new.configs:
            self.set_subscriptions(
                {name: values for (kind, name), values in new.configs.items() if kind == ResourceType.CLIENT_METRICS}
            )

    def set_subscriptions(self, resources: Mapping[str, Mapping[str, str]]) -> None:
        """Replaces the subscriptions. Parses only changed resources, because parsing all of them would take long."""
        subscriptions: dict[str, Subscription] = {}
        for name, values in resources.items():
            if self._resources.get(name) == values:
                if name in self._subscriptions:
                    subscriptions[name] = self._subscriptions[name]
                continue
            try:
                subscriptions[name] = Subscription.from_map(name, values)
            except ConfigError as error:
                logger.warning("client metrics subscription %s is ignored: %s", name, error)
        self._resources = resources
        if subscriptions != self._subscriptions:
            self._subscriptions = subscriptions
            self._version += 1

    # --- requests -------------------------------------------------------------------------------------

    def subscribe(self, ctx: RequestContext, client_instance_id: bytes) -> tuple[bytes, Instance]:
        """Returns the client instance id and the subscription. A client without an id gets a new id.

        Raises KafkaError if the client requests its subscription too often.
        """
        if client_instance_id == ZERO_UUID:
            client_instance_id = random_uuid(self._random)
        instance = self._instance(ctx, client_instance_id)
        if not instance.may_get(ctx.now_ms):
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "The client asked again before the push interval had passed: wait for the end of the interval.",
            )
        return client_instance_id, instance

    def push(
        self,
        ctx: RequestContext,
        client_instance_id: bytes,
        subscription_id: int,
        *,
        terminating: bool,
        compression: int,
        metrics: bytes,
    ) -> None:
        """Passes a payload on to the receivers. Raises KafkaError if the client may not push it."""
        if client_instance_id in RESERVED_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The client instance id is reserved: get a subscription first.")
        instance = self._instance(ctx, client_instance_id)
        try:
            self._check_push(ctx, instance, subscription_id, terminating, compression, len(metrics))
        finally:
            instance.terminating = terminating
        instance.pushes += 1
        instance.last_payload_bytes = len(metrics)
        if metrics:
            self._hand_on(Payload(client_instance_id, ctx.client_id, compression, terminating, metrics))

    def _check_push(
        self,
        ctx: RequestContext,
        instance: Instance,
        subscription_id: int,
        terminating: bool,
        compression: int,
        size: int,
    ) -> None:
        if instance.terminating:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The client has already sent its last push: get a new subscription."
            )
        if not instance.may_push(ctx.now_ms) and not terminating:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "The client pushed before the push interval had passed: wait for the end of the interval.",
            )
        if subscription_id != instance.subscription_id:
            raise KafkaError(
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "The subscription has changed: request the new subscription."
            )
        if compression not in set(Codec):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"There is no compression type {compression}: use one of the subscription's accepted types.",
            )
        if size > self.max_bytes:
            raise KafkaError(
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"The payload of {size} bytes exceeds telemetry.max.bytes, {self.max_bytes}: push fewer metrics.",
            )

    def _hand_on(self, payload: Payload) -> None:
        for receiver in self.receivers:
            try:
                receiver(payload)
            except Exception as error:
                logger.exception("a telemetry receiver failed")
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, "The broker's telemetry receiver failed: see the broker's log."
                ) from error

    # --- instances ------------------------------------------------------------------------------------

    def _instance(self, ctx: RequestContext, client_instance_id: bytes) -> Instance:
        instance = self.instances.get(client_instance_id)
        if instance is not None and self._expired(instance, ctx.now_ms):
            instance = None
        if instance is None:
            instance = self._subscribed(client_instance_id, _attributes(ctx, client_instance_id))
        elif instance.version < self._version:
            instance = self._subscribed(client_instance_id, instance.attributes)
        instance.seen_ms = ctx.now_ms
        self.instances[client_instance_id] = instance
        self.instances.move_to_end(client_instance_id)
        self._expire(ctx.now_ms)
        return instance

    def _expire(self, now_ms: int) -> None:
        while self.instances:
            oldest = next(iter(self.instances))
            if len(self.instances) <= MAX_INSTANCES and not self._expired(self.instances[oldest], now_ms):
                return
            del self.instances[oldest]

    @staticmethod
    def _expired(instance: Instance, now_ms: int) -> bool:
        return now_ms - instance.seen_ms > max(MIN_EXPIRY_MS, 3 * instance.interval_ms)

    def _subscribed(self, client_instance_id: bytes, attributes: Mapping[str, str]) -> Instance:
        work = Work()
        matching = [each for each in self._subscriptions.values() if _matches(each, attributes, work)]
        metrics = tuple(sorted({metric for each in matching for metric in each.metrics}))
        if ALL_METRICS in metrics:
            metrics = (ALL_METRICS,)
        interval_ms = min((each.interval_ms for each in matching), default=DEFAULT_INTERVAL_MS)
        interval_ms = min(interval_ms, DEFAULT_INTERVAL_MS)
        subscription_id = _subscription_id(metrics, interval_ms, client_instance_id)
        return Instance(attributes, metrics, interval_ms, subscription_id, self._version)


def _attributes(ctx: RequestContext, client_instance_id: bytes) -> dict[str, str]:
    connection = ctx.connection
    software_name, software_version = connection.state.get("software", (None, None))
    known = {
        "client_instance_id": uuid_to_str(client_instance_id),
        "client_id": ctx.client_id,
        "client_software_name": software_name,
        "client_software_version": software_version,
        "client_source_address": connection.peer_host,
        "client_source_port": str(connection.peer_port),
    }
    return {name: value for name, value in known.items() if value is not None and len(value) <= MAX_MATCHED_LENGTH}


def _matches(subscription: Subscription, attributes: Mapping[str, str], work: Work) -> bool:
    """Returns True if the client's attributes match the subscription.

    A pattern that takes too many steps does not match.
    """
    try:
        return all(
            name in attributes and pattern.matches(attributes[name], work)
            for name, pattern in subscription.match.items()
        )
    except KafkaError as error:
        logger.debug("client metrics subscription %s is ignored for a client: %s", subscription.name, error)
        return False


def _subscription_id(metrics: tuple[str, ...], interval_ms: int, client_instance_id: bytes) -> int:
    """Returns a checksum of the subscription and the client instance id. All brokers compute the same value."""
    number = crc32c(f"{','.join(metrics)}|{interval_ms}|".encode() + client_instance_id)
    return number - (1 << 32) if number >= 1 << 31 else number
