"""Sends synchronous requests to a broker, for the commands of the command line.

Uses Penstock's own client, and turns the client's exceptions into `Failure`, which the command line prints.

    with connect(args) as broker:
        answer = broker.ask(DescribeClusterRequest())
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.parser import near
from penstock.client.access_admin import AccessAdmin
from penstock.client.client import parse_bootstrap
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.connection import ConnectionSettings
from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.client.directory_moves import DirectoryMoves
from penstock.client.group_admin import GroupAdmin
from penstock.client.replica_moves import ReplicaMoves
from penstock.client.share_admin import ShareAdmin
from penstock.client.sync import Client
from penstock.client.transaction_admin import TransactionAdmin
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_03_metadata import MetadataResponseTopic
from penstock.protocol.messages.api_32_describe_configs import DescribeConfigsResourceResult
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import TopicPartition

T = TypeVar("T")

CODES = {
    ErrorCode.NETWORK_EXCEPTION: Exit.CANNOT_CONNECT,
    ErrorCode.BROKER_NOT_AVAILABLE: Exit.CANNOT_CONNECT,
    ErrorCode.REQUEST_TIMED_OUT: Exit.TIMEOUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Exit.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: Exit.NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: Exit.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: Exit.NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: Exit.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: Exit.EXISTS,
}


class Broker:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.cluster = ClusterAdmin(client.asynchronous)
        self.groups = GroupAdmin(client.asynchronous)
        self.share = ShareAdmin(client.asynchronous)
        self.transactions = TransactionAdmin(client.asynchronous)
        self.access = AccessAdmin(client.asynchronous)
        self.replica_moves = ReplicaMoves(client.asynchronous)
        self.directory_moves = DirectoryMoves(client.asynchronous)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with refusals():
            return self.client.run(work)

    def steps(self, work: AsyncIterator[T]) -> Iterator[T]:
        """Runs an asynchronous iterator and yields its items. Ctrl-C interrupts the wait for an item."""
        end = object()

        async def step() -> Any:
            return await anext(work, end)

        while (item := self.run(step())) is not end:
            yield item

    def ask(self, request: Message, *, node: int | None = None) -> Any:
        """Sends one request to `node` (default: any node) and returns the response.

        The caller checks the response's error codes.
        """
        with refusals():
            return self.client.request(request, node=node)

    def ask_coordinator(self, group: str, request: Message, *, at_most: int | None = None) -> Any:
        """Sends one request to the group's coordinator and returns the response.

        Repeats the request while the coordinator loads or moves.
        """
        return self.run(self.client.asynchronous.ask_coordinator(group, request, at_most=at_most))

    @property
    def cluster_id(self) -> str:
        """Returns the id of the cluster; empty before the first response."""
        return self.client.asynchronous.cluster.cluster_id or ""

    def topics(self, names: Sequence[str] | None = None) -> list[MetadataResponseTopic]:
        with refusals():
            answer = self.client.metadata(names)
        return sorted(answer.topics, key=lambda topic: topic.name or "")

    def existing(self, names: Sequence[str] | None = None) -> list[MetadataResponseTopic]:
        """Returns the topics with these names (default: all).

        Raises Failure if a topic does not exist or can't be used. The message suggests a similar name.
        """
        found = self.topics(names)
        for topic in found:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                known = [other.name for other in self.topics() if other.name and not other.is_internal]
                advice = near(topic.name or "", known) or ": `penstock topic list` shows the topics"
                raise Failure(f"there is no topic {topic.name}{advice}", Exit.NOT_FOUND)
            if topic.error_code:
                raise failure(topic.name or "?", topic.error_code, None)
        return found

    def offsets(self, partitions: Iterable[TopicPartition], when: int, isolation: int = 0) -> dict[TopicPartition, int]:
        """Returns each partition's offset for a timestamp, EARLIEST or LATEST.

        The offset is -1 if all records are older than the timestamp.
        """
        with refusals():
            found = self.client.list_offsets(dict.fromkeys(partitions, when), isolation_level=isolation)
        return {partition: each.offset for partition, each in found.items()}

    def configs(self, kind: int, name: str, **wanted: Any) -> list[DescribeConfigsResourceResult]:
        with refusals():
            return self.client.describe_configs(kind, name, **wanted)


@contextmanager
def connect(
    args: argparse.Namespace, client_id: str = "penstock-cli", settings: ConnectionSettings | None = None
) -> Iterator[Broker]:
    """Connects to the brokers of --bootstrap. Raises Failure if no broker responds.

    `settings` take precedence over --timeout and --command-config.
    """
    if settings is None:
        found = credentials_in(getattr(args, "command_config", None))
        settings = ConnectionSettings(
            client_id=client_id,
            connect_timeout_s=min(args.timeout, 10.0),
            request_timeout_s=args.timeout,
            tls=found.tls,
            login=found.login,
        )
    try:
        client = Client(args.bootstrap, settings=settings)
    except ValueError as wrong:
        raise Failure(str(wrong), Exit.USAGE) from wrong
    except KafkaError as problem:
        sentence = _cannot_connect(args.bootstrap, problem, settings.connect_timeout_s)
        raise Failure(sentence, Exit.CANNOT_CONNECT) from problem
    with client:
        yield Broker(client)


def credentials_in(path: str | None) -> Credentials:
    """Returns the TLS context and the login from the --command-config file. Raises Failure if the file is wrong."""
    if path is None:
        return NO_CREDENTIALS
    from penstock.cli.properties import read_file
    from penstock.client.client_security import ClientSecurityError, credentials_of

    try:
        return credentials_of(read_file(path, "client properties"))
    except ClientSecurityError as wrong:
        raise Failure(f"{path}: {wrong}", Exit.USAGE) from None


def _cannot_connect(bootstrap: str, problem: KafkaError, timeout_s: float) -> str:
    """Returns a sentence that says why the first bootstrap address can't be used, and what to do."""
    (host, port), *others = parse_bootstrap(bootstrap)
    where = f"{host}:{port}"
    if ":" not in bootstrap:
        where += " (--bootstrap names no port)"
    if others:
        where += f" (and {len(others)} more)"
    match problem.__cause__:
        case socket.gaierror() | UnicodeError():
            return f"the host name {host} can't be resolved: check it in --bootstrap"
        case ConnectionRefusedError():
            return f"nothing listens at {where}: start a broker with `penstock up`, or name another with --bootstrap"
        case TimeoutError():
            return f"{where} did not answer within {timeout_s:g} s: check the address, or give a longer --timeout"
        case OSError() as cause:
            return f"can't connect to {where}: {cause.strerror or cause}"
        case _:
            return f"{where} answered, but not as a Kafka broker does: {problem.message or problem.code.name}"


@contextmanager
def refusals() -> Iterator[None]:
    """Turns a KafkaError of the client into the Failure that ends the command."""
    try:
        yield
    except KafkaError as problem:
        raise Failure(_sentence(problem.code, problem.message), CODES.get(problem.code, Exit.FAILED)) from problem


def failure(what: str, code: int, message: str | None) -> Failure:
    """Returns the Failure for an error code in a response. `what` names the refused topic or group."""
    known = ErrorCode(code)
    return Failure(f"{what}: {_sentence(known, message)}", CODES.get(known, Exit.FAILED))


def with_near_configs(message: str | None, given: Iterable[str]) -> str | None:
    """Returns the broker's error message. For an unknown topic config, adds the most similar known name.

    The command line searches for similar names, because the search is too expensive for a broker to run per request.
    """
    from penstock.cli.parser import near
    from penstock.metadata.configs.topic import TOPIC_CONFIGS

    unknown = [name for name in given if name not in TOPIC_CONFIGS and message and name in message]
    found = [near(name, TOPIC_CONFIGS) for name in unknown[:1]]
    return f"{(message or '').removesuffix(': check its spelling.')}{found[0]}" if found and found[0] else message


def _sentence(code: ErrorCode, message: str | None) -> str:
    if message:
        return message
    match code:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "there is no such topic or partition: `penstock topic list` shows the topics"
        case ErrorCode.TOPIC_ALREADY_EXISTS:
            return "it exists already"
        case ErrorCode.INVALID_TOPIC_EXCEPTION:
            return "this is not a valid topic name: use letters, digits, '.', '_' and '-', at most 249"
        case ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return "there is no such transactional id: `penstock txn list` shows the ids"
        case ErrorCode.GROUP_ID_NOT_FOUND:
            return "there is no such group: `penstock group list` shows the groups"
        case _:
            return code.name


def outcome(
    how: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    failures: Sequence[tuple[str, int, str | None]],
) -> int:
    """Prints the results and the failures of a command.

    Returns the exit code of the first failure, or 0 if nothing failed.
    """
    if rows or (how == "json" and not failures):
        output.rows(how, columns, rows)
    problems = [failure(*each) for each in failures]
    for problem in problems:
        output.note(f"penstock: {problem.message}")
    return problems[0].code if problems else Exit.OK
