"""A broker to ask, for verbs that run from top to bottom: the async client on a loop of its own, errors as failures.

with connect(args) as broker:
    answer = broker.ask(DescribeClusterRequest())
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.retry import Retry
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_02_list_offsets as list_offsets
from penstock.protocol.messages import api_32_describe_configs as describe_configs
from penstock.protocol.messages.api_03_metadata import MetadataResponseTopic
from penstock.protocol.schema import Message

T = TypeVar("T")

CODES = {
    ErrorCode.NETWORK_EXCEPTION: Exit.CANNOT_CONNECT,
    ErrorCode.BROKER_NOT_AVAILABLE: Exit.CANNOT_CONNECT,
    ErrorCode.REQUEST_TIMED_OUT: Exit.TIMEOUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Exit.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: Exit.NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: Exit.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: Exit.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: Exit.EXISTS,
}


class Broker:
    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self.client = client
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except KafkaError as problem:
            raise refused(problem) from problem

    def ask(self, request: Message, *, node: int | None = None) -> Any:
        """One request to one node, any if none is named. Error codes inside the answer are the caller's."""
        return self.run(self.client.request(request, node=node))

    def topics(self, names: Sequence[str] | None = None) -> list[MetadataResponseTopic]:
        answer = self.run(self.client.metadata(names))
        return sorted(answer.topics, key=lambda topic: topic.name or "")

    def offsets(self, partitions: Mapping[str, Iterable[int]], whens: Iterable[int]) -> dict[tuple[str, int, int], int]:
        """(topic, partition, special or real timestamp) → offset, as far as leaders answer."""
        return self.run(offsets_at(self.client, [(t, p) for t, ps in partitions.items() for p in ps], list(whens)))

    def configs(
        self,
        kind: int,
        name: str,
        *,
        keys: list[str] | None = None,
        node: int | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> list[describe_configs.DescribeConfigsResourceResult]:
        resource = describe_configs.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys
        )
        request = describe_configs.DescribeConfigsRequest(
            resources=[resource], include_synonyms=synonyms, include_documentation=documentation
        )
        (result,) = self.ask(request, node=node).results
        if result.error_code:
            raise failure(name, result.error_code, result.error_message)
        found: list[describe_configs.DescribeConfigsResourceResult] = result.configs
        return found


async def offsets_at(
    client: AsyncClient, partitions: Sequence[tuple[str, int]], whens: Sequence[int]
) -> dict[tuple[str, int, int], int]:
    """A request names a partition once, so each timestamp is asked for by itself."""
    found: dict[tuple[str, int, int], int] = {}
    for node, led in (await client.by_leader(partitions)).items():
        for when in whens:
            topics: dict[str, list[list_offsets.ListOffsetsPartition]] = {}
            for topic, partition in led:
                asked = list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=when)
                topics.setdefault(topic, []).append(asked)
            request = list_offsets.ListOffsetsRequest(
                replica_id=-1,
                topics=[list_offsets.ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()],
            )
            for answered in (await client.request(request, node=node)).topics:
                for each in answered.partitions:
                    if not each.error_code:
                        found[answered.name, each.partition_index, when] = each.offset
    return found


@contextmanager
def connect(args: argparse.Namespace) -> Iterator[Broker]:
    """The brokers that --bootstrap names, or a failure that says that none answers."""
    from penstock.net.loop import new_event_loop

    settings = ConnectionSettings(
        client_id="penstock-cli", connect_timeout_s=min(args.timeout, 10.0), request_timeout_s=args.timeout
    )
    try:
        client = AsyncClient(args.bootstrap, settings=settings, retry=Retry())
    except ValueError as wrong:
        raise Failure(str(wrong), Exit.USAGE) from wrong
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(_open(client))
        except KafkaError as problem:
            sentence = f"no broker answers at {args.bootstrap}: start one with `penstock up`, or give --bootstrap"
            raise Failure(sentence, Exit.CANNOT_CONNECT) from problem
        try:
            yield Broker(client, runner)
        finally:
            runner.run(client.close())


async def _open(client: AsyncClient) -> None:
    await client.connection()


def refused(problem: KafkaError) -> Failure:
    return Failure(_sentence(problem.code, problem.message), CODES.get(problem.code, Exit.FAILED))


def failure(what: str, code: int, message: str | None) -> Failure:
    """The failure for an error code in an answer about `what`."""
    known = ErrorCode(code)
    return Failure(f"{what}: {_sentence(known, message)}", CODES.get(known, Exit.FAILED))


def _sentence(code: ErrorCode, message: str | None) -> str:
    if message:
        return message
    match code:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "there is no such topic or partition: `penstock topic list` shows what there is"
        case ErrorCode.TOPIC_ALREADY_EXISTS:
            return "it exists already"
        case _:
            return code.name


def outcome(
    how: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    failures: Sequence[tuple[str, int, str | None]],
) -> int:
    """Prints what was done and what was not; the first failure gives the exit code."""
    if rows or (how == "json" and not failures):
        output.rows(how, columns, rows)
    problems = [failure(*each) for each in failures]
    for problem in problems:
        output.note(f"penstock: {problem.message}")
    return problems[0].code if problems else Exit.OK
