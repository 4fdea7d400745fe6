"""Implements the core of the client: connections by node, the cluster's metadata, routing to leaders, retries."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple, TypeVar

from penstock.client.cluster import Cluster, TopicInfo
from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.errors import COORDINATOR_BUSY, COORDINATOR_MOVED, code_of, error_codes
from penstock.client.retry import Retry
from penstock.net.network import Network, RealNetwork
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.protocol.messages.api_10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import GROUP_COORDINATOR

T = TypeVar("T")

DEFAULT_PORT = 9092
# A node may learn of a new topic a moment after its creation was answered; a missing topic stays unknown.
UNKNOWN_TOPIC_ATTEMPTS = 3
# Kafka creates a requested topic after its first answers, which report an unknown topic; a broker that creates no
# topics reports that every time.
CREATED_TOPIC_ATTEMPTS = 10
# Pause before the next connection attempt to an unreachable node; it doubles after each failure.
FIRST_RECONNECT_PAUSE_S, LONGEST_RECONNECT_PAUSE_S = 0.05, 1.0
# Delay between concurrent connection attempts to bootstrap addresses, so that a silent address doesn't block the rest.
NEXT_ADDRESS_AFTER_S = 0.25
# Limit of the time that a broker which doesn't read can delay closing.
CLOSE_TIMEOUT_S = 5.0
BOOTSTRAP = -1
"""The node id of a connection to a bootstrap address, whose real node id is unknown."""


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[tuple[str, int]]:
    """Parses `host:port,host:port` or a list of such addresses. Raises ValueError."""
    entries = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = []
    for entry in entries:
        text = entry.strip()
        host, separator, port = text.rpartition(":")
        if not separator or text.endswith("]"):
            host, port = text, str(DEFAULT_PORT)
        if not host:
            raise ValueError(f"{entry!r} names no host: write host:port, as in localhost:{DEFAULT_PORT}")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"{entry!r} is not host:port: write an IPv6 address in brackets, [::1]:{DEFAULT_PORT}")
        if not port:
            raise ValueError(f"{entry!r} names no port: write {host}:{DEFAULT_PORT}, or the broker's own port")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{entry!r}: {port!r} is not a port: give a number from 1 to 65535")
        addresses.append((host.strip("[]"), int(port)))
    return addresses


class AsyncClient:
    """Implements a client on one event loop, without threads: `async with AsyncClient("host:port") as client`.

    Each node has one connection per channel. A broker handles the requests of a connection one at a time. So a request
    that the broker may park, such as a Fetch, uses a separate channel and does not delay other requests.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        settings: ConnectionSettings | None = None,
        retry: Retry | None = None,
        random: Random | None = None,
        network: Network | None = None,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self.settings = settings or ConnectionSettings()
        self.retry = retry or Retry()
        # Used only to spread pauses and partitions: a fixed seed suffices for a client; a node passes its own.
        self.random = random or Random(0)  # noqa: S311
        self.network: Network = network or RealNetwork()
        self.cluster = Cluster()
        self._coordinators: dict[tuple[int, str], int] = {}
        self._connections: dict[tuple[int, str], BrokerConnection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[BrokerConnection]] = {}
        self._unreachable: dict[int, _Unreachable] = {}

    async def __aenter__(self) -> "AsyncClient":
        await self.connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        while self._opening:  # another connection may be requested meanwhile
            openings = list(self._opening.values())
            if all(opening.done() for opening in openings):
                await asyncio.sleep(0)  # their callbacks run; since Python 3.12 gather would not wait for them
                continue
            for opening in openings:
                opening.cancel()
            await asyncio.gather(*openings, return_exceptions=True)
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for connection in connections:
                    await connection.wait_closed()

    # Connections

    async def connection(self, node: int | None = None, channel: str = "") -> BrokerConnection:
        """Returns the connection to a node (None: any node), and opens it if needed. Raises KafkaError."""
        if node is None:
            node = self._any_node(channel)
        key = (node, channel)
        known = self._connections.get(key)
        if known is not None and not known.closed:
            return known
        self._check_reachable(node)
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.ensure_future(self._open(node))
            self._opening[key] = opening
            opening.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(opening)

    def _any_node(self, channel: str) -> int:
        """Returns a node for a request that any node can serve. Prefers a node without requests in flight.

        A node that has not answered its requests may be dead.
        """
        live = {
            node: each.in_flight for (node, of), each in self._connections.items() if of == channel and not each.closed
        }
        if not live:
            return BOOTSTRAP
        idlest = min(live, key=live.__getitem__)
        if live[idlest] and BOOTSTRAP not in live:
            return BOOTSTRAP
        if live[idlest]:
            now = asyncio.get_running_loop().time()
            for other in self.cluster.nodes:
                failed = self._unreachable.get(other)
                if other not in live and (failed is None or failed.until <= now):
                    return other
        return idlest

    def _check_reachable(self, node: int) -> None:
        failed = self._unreachable.get(node)
        if failed is not None and asyncio.get_running_loop().time() < failed.until:
            raise KafkaError(failed.error.code, failed.error.message)

    def _opened(self, key: tuple[int, str], done: "asyncio.Task[BrokerConnection]") -> None:
        del self._opening[key]
        if done.cancelled():
            return
        node = key[0]
        error = done.exception()
        if error is None:
            self._unreachable.pop(node, None)
            self._connections[key] = done.result()
        elif isinstance(error, KafkaError) and node != BOOTSTRAP:
            before = self._unreachable.get(node)
            failures = 1 if before is None else before.failures + 1
            pause = min(FIRST_RECONNECT_PAUSE_S * 2 ** min(failures - 1, 10), LONGEST_RECONNECT_PAUSE_S)
            self._unreachable[node] = _Unreachable(failures, asyncio.get_running_loop().time() + pause, error)

    async def _open(self, node: int) -> BrokerConnection:
        if node != BOOTSTRAP:
            if node not in self.cluster.nodes:
                await self._ask_metadata([])
            known = self.cluster.nodes.get(node)
            if known is None:
                raise KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"Node {node} is not among the cluster's live brokers."
                )
            return await BrokerConnection.open(self.network, known.host, known.port, self.settings)
        addresses = self.bootstrap + [(known.host, known.port) for known in self.cluster.nodes.values()]
        return await self._open_first(list(dict.fromkeys(addresses)))

    async def _open_first(self, addresses: list[tuple[str, int]]) -> BrokerConnection:
        """Returns the first connection that opens.

        Tries the addresses in order. If an attempt fails or takes longer than NEXT_ADDRESS_AFTER_S seconds, tries the
        next address. The slow attempts continue meanwhile.
        """
        attempts: list[asyncio.Task[BrokerConnection]] = []
        found: BrokerConnection | None = None
        try:
            for address in addresses:
                attempts.append(asyncio.ensure_future(BrokerConnection.open(self.network, *address, self.settings)))
                running = [attempt for attempt in attempts if not attempt.done()]
                await asyncio.wait(running, timeout=NEXT_ADDRESS_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
                if (found := _succeeded(attempts)) is not None:
                    return found
            while running := [attempt for attempt in attempts if not attempt.done()]:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if (found := _succeeded(attempts)) is not None:
                    return found
            return await attempts[0]  # raises the cause
        finally:
            for attempt in attempts:
                _give_up(attempt, found)

    # Requests

    async def request(
        self,
        message: Message,
        *,
        node: int | None = None,
        channel: str = "",
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Sends a request once and returns the response. Raises KafkaError if no response arrives.

        The caller checks the response's error codes.
        """
        connection = await self.connection(node, channel)
        return await connection.request(message, version=version, timeout_s=timeout_s)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], refresh: Iterable[str] = ()) -> T:
        """Returns the result of `attempt`. Repeats `attempt` while it raises a retriable KafkaError.

        Refreshes the metadata of the topics in `refresh` before each repetition.
        """
        topics = list(refresh)
        for failures in range(1, self.retry.attempts + 1):
            try:
                return await attempt()
            except KafkaError as error:
                if not error.code.retriable or failures == self.retry.attempts:
                    raise
            await self.pause(failures)
            if topics:
                await self.refresh_quietly(topics)
        raise AssertionError

    async def pause(self, failures: int) -> None:
        await asyncio.sleep(self.retry.pause_s(failures, self.random))

    # Metadata

    async def metadata(self, topics: Sequence[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """Returns the Metadata response for the given topics (default: all topics), and caches it in `cluster`."""
        return await self.retrying(lambda: self._ask_metadata(topics, create=create))

    async def _ask_metadata(self, topics: Sequence[str] | None, *, create: bool = False) -> MetadataResponse:
        """Requests metadata once and returns the response. Does not retry, because its callers retry."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        connection = await self.connection()
        version = connection.version_of(request.API_KEY)
        if version == 0 and wanted is None:
            request.topics = []
        answer: MetadataResponse = await connection.request(request, version=version)
        if answer.error_code:
            raise KafkaError(code_of(answer.error_code), "The broker refused to describe the cluster.")
        for number, _ in enumerate(self.cluster.updating(answer, all_topics=topics is None)):
            await yield_between_slices(number)
        return answer

    async def refresh(self, topics: Sequence[str]) -> None:
        """Refreshes the metadata of the given topics, which must exist. Without topics, refreshes only the nodes."""
        await self.metadata(topics)

    async def refresh_quietly(self, topics: Sequence[str]) -> None:
        """Refreshes metadata before a request is retried.

        Ignores retriable errors: if no broker can be reached, the request itself fails with such an error.
        """
        try:
            await self._ask_metadata(topics)
        except KafkaError as error:
            if not error.code.retriable:
                raise

    async def topic(self, name: str, *, create: bool = False) -> TopicInfo:
        """Returns a topic's partitions, from the cache if possible.

        Raises KafkaError, for example UNKNOWN_TOPIC_OR_PARTITION.
        """
        known = self.cluster.topics.get(name)
        if known is not None:
            return known

        unknown = 0

        async def ask() -> TopicInfo:
            nonlocal unknown
            answer = await self._ask_metadata([name], create=create)
            for topic in answer.topics:
                if topic.name == name and topic.error_code:
                    code = code_of(topic.error_code)
                    unknown += code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if unknown == (CREATED_TOPIC_ATTEMPTS if create else UNKNOWN_TOPIC_ATTEMPTS):
                        raise _NoTopicError(name)
                    raise KafkaError(code, f"Topic {name!r} can't be used ({code.name}).")
            return self.cluster.topics[name]

        try:
            return await self.retrying(ask)
        except _NoTopicError:
            sentence = f"There is no topic {name!r}: create it first."
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence) from None

    async def leader(self, topic: str, partition: int) -> int:
        """Returns the node id of a partition's leader. Waits for an election as long as `retry` allows."""

        async def find() -> int:
            leader = self.cluster.leader(topic, partition)
            if leader is not None:
                return leader
            info = await self.topic(topic)
            if partition not in info.partitions:
                await self.refresh([topic])
                if partition not in (await self.topic(topic)).partitions:
                    raise _NoTopicError(f"{topic}-{partition}")
            leader = self.cluster.leader(topic, partition)
            if leader is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader.")
            return leader

        try:
            return await self.retrying(find, refresh=[topic])
        except _NoTopicError:
            count = len(self.cluster.topics[topic].partitions) if topic in self.cluster.topics else 0
            has = "1 partition" if count == 1 else f"{count} partitions"
            sentence = f"Topic {topic!r} has {has} and no partition {partition}."
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence) from None

    async def coordinator(self, key: str, kind: int = GROUP_COORDINATOR) -> int:
        """Returns the node id of the coordinator of a group or transactional id.

        Caches the result until `forget_coordinator` is called.
        """
        known = self._coordinators.get((kind, key))
        if known is not None and known in self.cluster.nodes:
            return known

        async def ask() -> int:
            connection = await self.connection()
            version = connection.version_of(FindCoordinatorRequest.API_KEY)
            request = FindCoordinatorRequest(key_type=kind)
            if version < 4:
                request.key = key
            else:
                request.coordinator_keys = [key]
            answer: FindCoordinatorResponse = await connection.request(request, version=version)
            found: Coordinator | FindCoordinatorResponse = answer.coordinators[0] if version >= 4 else answer
            if found.error_code:
                raise KafkaError(code_of(found.error_code), found.error_message or f"{key!r} has no coordinator yet.")
            if found.node_id not in self.cluster.nodes:
                await self._ask_metadata([])
            return found.node_id

        node = self._coordinators[kind, key] = await self.retrying(ask)
        return node

    def forget_coordinator(self, key: str, kind: int = GROUP_COORDINATOR) -> None:
        """Removes a coordinator from the cache. Called after NOT_COORDINATOR or a lost connection.

        The next request looks up the coordinator again.
        """
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self, key: str, message: Message, *, kind: int = GROUP_COORDINATOR, at_most: int | None = None
    ) -> Any:
        """Sends a request to a coordinator and returns the response.

        Repeats the request while the coordinator loads or moves.
        """

        async def attempt() -> Any:
            try:
                connection = await self.connection(await self.coordinator(key, kind))
                version = connection.version_of(message.API_KEY, at_most)
                answer = await connection.request(message, version=version)
            except KafkaError as error:
                if error.code.retriable:
                    self.forget_coordinator(key, kind)
                raise
            for number, code in enumerate(error_codes(answer)):
                if code in COORDINATOR_MOVED:
                    self.forget_coordinator(key, kind)
                if code in COORDINATOR_BUSY:
                    raise KafkaError(code, f"The coordinator of {key!r} is not ready ({code.name}): try again.")
                await yield_between_slices(number)
            return answer

        return await self.retrying(attempt)

    async def by_leader(self, partitions: Iterable[tuple[str, int]]) -> dict[int, list[tuple[str, int]]]:
        """Returns the given partitions grouped by the node id of their leader."""
        grouped: dict[int, list[tuple[str, int]]] = {}
        for number, (topic, partition) in enumerate(partitions):
            leader = self.cluster.leader(topic, partition)
            if leader is None:
                leader = await self.leader(topic, partition)
            grouped.setdefault(leader, []).append((topic, partition))
            await yield_between_slices(number)
        return grouped


def _succeeded(attempts: list[asyncio.Task[BrokerConnection]]) -> BrokerConnection | None:
    for attempt in attempts:
        if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
            return attempt.result()
    return None


def _give_up(attempt: asyncio.Task[BrokerConnection], chosen: BrokerConnection | None) -> None:
    """Abandons a connection attempt, and does not wait for its result.

    If the attempt still opens a connection, closes it, unless it is `chosen`.
    """

    def drop(done: asyncio.Task[BrokerConnection]) -> None:
        if not done.cancelled() and done.exception() is None and done.result() is not chosen:
            done.result().close()

    attempt.cancel()
    attempt.add_done_callback(drop)


class _Unreachable(NamedTuple):
    """Holds the number of failed attempts to connect to a node, and the time until which no new attempt is made."""

    failures: int
    until: float
    error: KafkaError


class _NoTopicError(Exception):
    """Raised if a topic or partition doesn't exist. The client then does not retry.

    Kafka's error code for this case is retriable, so this is a separate exception.
    """
