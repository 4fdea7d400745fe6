"""A broker under test. A test sends requests; then `said` compares the answers with an expected transcript.

    def test_an_unknown_topic(peer: Peer) -> None:
        peer.ask(MetadataRequest(topics=[MetadataRequestTopic(name="nope")]), 12)
        peer.said(\"\"\"...\"\"\")

The same test runs against Penstock and against Apache Kafka, so the transcript holds Kafka's answers.
"""

from __future__ import annotations

import difflib
import inspect
import secrets
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from oracle_record import Recorder
from oracle_transcript import Masks, render
from oracle_wire import PATIENCE_SECONDS, Closed, Wire

from penstock.protocol.apis import APIS
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.protocol.schema import Message
from penstock.records.build import build_batch

SETTLING_SECONDS = 120.0
CLOSED = "(closed)"
OFFSETS_PARTITIONS = 50


def _java_hash(text: str) -> int:
    """Returns Java's hash code of a short text. The text must be so short that the hash can't overflow."""
    value = 0
    for letter in text:
        value = 31 * value + ord(letter)
    return value


#: One group id for each partition of the topic of committed offsets.
GROUPS = list({_java_hash(name) % OFFSETS_PARTITIONS: name for name in map(str, range(1000))}.values())


class Peer:
    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        recorder: Recorder | None = None,
        patience_s: float = PATIENCE_SECONDS,
    ) -> None:
        self.name = name
        self._patience_s = patience_s
        self.address = address
        self.masks = Masks()
        self.names: set[str] = set()
        self._recorder = recorder
        self._heard: list[str] = []
        self._wires: list[Wire] = []
        self._main: Wire | None = None

    def close(self) -> None:
        for wire in self._wires:
            wire.close()

    def connect(self, client_id: str | None = "oracle") -> Wire:
        wire = Wire(*self.address, client_id, self._patience_s)
        self._wires.append(wire)
        return wire

    # --- requests ----------------------------------------------------------------------------------------

    def ask(self, request: Message, version: int | None = None, *, on: Wire | None = None) -> Any:
        """Sends a request and records the answer. Returns None if the broker closed the connection."""
        version = APIS[request.API_KEY].latest_stable if version is None else version
        try:
            answer = self.quietly(request, version, on=on)
        except Closed:
            self.note(f"{APIS[request.API_KEY].name} v{version} {CLOSED}")
            return None
        self.note(render(answer, version, self.masks))
        return answer

    def quietly(self, request: Message, version: int | None = None, *, on: Wire | None = None) -> Any:
        """Sends a request without recording the answer."""
        version = APIS[request.API_KEY].latest_stable if version is None else version
        wire = on or self.main
        try:
            return wire.receive(request.API_KEY, version, wire.send(request, version))
        except (Closed, TimeoutError):
            if wire is self._main:
                self._main = None
            raise

    @property
    def main(self) -> Wire:
        if self._main is None:
            self._main = self.connect()
        return self._main

    def note(self, text: str) -> None:
        self._heard.append(text)

    def said(self, expected: str) -> None:
        """Asserts the transcript of the answers since the last call."""
        heard, self._heard = "\n".join(self._heard), []
        if self._recorder is not None:
            caller = inspect.stack()[1]
            self._recorder.take(caller.filename, caller.lineno, heard)
            return
        wanted = textwrap.dedent(expected).strip()
        if heard != wanted:
            difference = difflib.ndiff(wanted.splitlines(), heard.splitlines())
            told = "\n".join(line for line in difference if not line.startswith("?"))
            raise AssertionError(f"Kafka says (-), {self.name} says (+):\n{told}")

    # --- setup that most tests share ---------------------------------------------------------------------

    def unique(self, name: str) -> str:
        """Returns a unique name; transcripts show it without its random part."""
        real = f"{name}-x{secrets.token_hex(4)}x"
        self.names.add(real)
        return real

    def topic(self, name: str = "t", partitions: int = 1, **configs: str) -> str:
        """Creates a topic and waits until its partitions have leaders."""
        real = self.unique(name)
        wanted = CreatableTopic(
            name=real,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()],
        )
        (created,) = self.quietly(CreateTopicsRequest(topics=[wanted], timeout_ms=20_000)).topics
        assert created.error_code == 0, created
        self.masks.topic_ids[created.topic_id] = name
        self.settle(lambda: self._led(real, partitions))
        return real

    def topic_id(self, name: str) -> bytes:
        shown = name.split("-x")[0]
        return next(topic_id for topic_id, known in self.masks.topic_ids.items() if known == shown)

    def _led(self, name: str, partitions: int) -> bool:
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        topics = [ListOffsetsTopic(name=name, partitions=asked)]
        (topic,) = self.quietly(ListOffsetsRequest(replica_id=-1, topics=topics)).topics
        return all(partition.error_code == 0 for partition in topic.partitions)

    def settle(self, is_so: Callable[[], bool]) -> None:
        """Waits for an effect that a broker shows only shortly after its answer."""
        deadline = time.monotonic() + SETTLING_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, "the broker did not settle"
            time.sleep(0.01)

    def have_offsets_topic(self) -> None:
        """Creates the topic of committed offsets by asking for a coordinator, and waits until it is loaded."""
        request = FindCoordinatorRequest(key="g", key_type=0)
        self.settle(lambda: bool(self.quietly(request, 1).error_code == 0))
        asking = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=each, topics=[]) for each in GROUPS])
        self.settle(lambda: not any(group.error_code for group in self.quietly(asking, 8).groups))

    def have_transactions_topic(self, transactional_id: str = "t") -> None:
        request = FindCoordinatorRequest(key=transactional_id, key_type=1)
        self.settle(lambda: bool(self.quietly(request, 3).error_code == 0))

    def produce(self, topic: str, timestamps: Sequence[int] = (1000,), partition: int = 0, **batch: Any) -> Any:
        """Produces one batch with a record per timestamp, without recording the answer. Returns the partition's
        answer."""
        records = build_batch([(at, b"k", b"v", ()) for at in timestamps], **batch)
        data = [PartitionProduceData(index=partition, records=records)]
        request = ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        return self.quietly(request, 12).responses[0].partition_responses[0]
