"""Thousands of invalid requests get the same answers from both brokers.

A typical request gets one to three of its fields replaced by extreme values. `PENSTOCK_ORACLE_SEED` and
`PENSTOCK_ORACLE_COUNT` choose other values and more requests. Known differences (`docs/skipped.md`) are excluded:
timeouts of 0, unknown isolation levels, more partitions than a request may create, and requests on which Kafka's
handler fails.
"""

from __future__ import annotations

import difflib
import os
import random
import re
from typing import Any

import pytest
from oracle_peer import CLOSED, Peer
from oracle_transcript import Masks, render
from oracle_typical import KEYS, request, typical
from oracle_wire import Closed

from penstock.protocol.apis import APIS
from penstock.protocol.codec import EncodeError, encode
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.schema import Message, Struct

SEED = int(os.environ.get("PENSTOCK_ORACLE_SEED", "1"))
COUNT = int(os.environ.get("PENSTOCK_ORACLE_COUNT", "400"))
LEFT_ALONE = {"validate_only", "records", "timeout_ms", "isolation_level", "allow_auto_topic_creation", "acks"}
# Listings of all resources, elections of all partitions and unique ids differ between two brokers.
KEPT_OUT = {18, 22, 43, 74, 75}
EDGES: dict[str, list[Any]] = {
    "int8": [-128, -1, 0, 1, 3, 127],
    "int16": [-32768, -1, 0, 1, 5, 32767],
    "int32": [-(1 << 31), -1, 0, 1, 7, (1 << 31) - 1],
    "int64": [-(1 << 63), -1, 0, 1, 5, 1 << 62, (1 << 63) - 1],
    "float64": [-1.0, 0.0, 1.5, 1e9],
    "boolean": [False, True],
    "uuid": [bytes(16), bytes(15) + b"\x09"],
    "binary": [b"", b"xx"],
}
NOT_COMPARED = re.compile(
    "name=penstock[.]|synonyms: .* source=4"
)  # Penstock's own configs; properties that the brokers were started with
FULL_LISTS = ("brokers", "node_endpoints")


def mutate(rng: random.Random, struct: Struct, version: int, names: list[str]) -> None:
    fields = [field for field in struct.FIELDS if field.exists_in(version) and field.name not in LEFT_ALONE]
    inner = [field for field in fields if isinstance(field.item, type) and getattr(struct, field.name)]
    if inner and rng.random() < 0.7:
        below = getattr(struct, rng.choice(inner).name)
        mutate(rng, rng.choice(below) if isinstance(below, list) else below, version, names)
        return
    if not fields:
        return
    field = rng.choice(fields)
    if field.nullable_in(version) and rng.random() < 0.25:
        setattr(struct, field.name, None)
    elif field.kind == "array":
        setattr(struct, field.name, [])
    elif field.kind == "string":
        setattr(struct, field.name, rng.choice(["", *names]))
    elif field.kind in EDGES:
        setattr(struct, field.name, rng.choice(EDGES[field.kind]))


def said(peer: Peer, asked: Message, version: int) -> str:
    try:
        answer = peer.quietly(asked, version)
    except Closed:
        return CLOSED
    except TimeoutError:
        return "(no answer)"
    for name in FULL_LISTS:
        if hasattr(answer, name):
            setattr(answer, name, [])
    masks = Masks()
    masks.topic_ids = peer.masks.topic_ids
    lines = [line for line in render(answer, version, masks).split("\n") if not NOT_COMPARED.search(line)]
    return re.sub(r" (error_message|base_offset)=\S+", "", "\n".join(sorted(lines)))


class Stage:
    """A broker with a topic that has records and a group that has offsets."""

    def __init__(self, name: str, address: tuple[str, int]) -> None:
        self.peer = Peer(name, address, patience_s=5)
        self.peer.have_offsets_topic()
        self.peer.have_transactions_topic()
        self.topic, self.group = self.peer.topic(), self.peer.unique("g")
        self.other = self.peer.topic("other")
        self.strange = [self.peer.unique("a b"), self.peer.unique("é"), "x" * 300 + self.peer.unique("")]
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name=self.topic, partitions=[part])]
        self.peer.quietly(OffsetCommitRequest(group_id=self.group, topics=topics), 9)

    def ask(self, key: int, version: int, seed: int) -> tuple[Message, str]:
        rng = random.Random(seed)
        topic = self.other if key == 0 else self.topic
        asked: Any = request(key, version, typical(self.peer, key, topic, self.group))
        names = [f"no-{topic}", self.group, *self.strange]
        if key != 20:  # the topic is needed by later requests
            names.append(topic)
        for _ in range(rng.choice([1, 1, 2, 3])):
            mutate(rng, asked, version, names)
        if key == 3:
            asked.allow_auto_topic_creation = version < 4
        encode(asked, version)
        return asked, said(self.peer, asked, version)


@pytest.mark.java
@pytest.mark.slow
def test_requests_with_random_mistakes_get_the_same_answers_from_kafka_and_penstock(
    penstock_address: tuple[str, int], kafka_address: tuple[str, int]
) -> None:
    penstock, kafka = Stage("penstock", penstock_address), Stage("kafka", kafka_address)
    keys = [key for key in KEYS if key not in KEPT_OUT]
    differing = []
    for number in range(COUNT):
        seed = SEED * 1_000_000 + number
        rng = random.Random(seed)
        key = rng.choice(keys)
        version = rng.randint(max(APIS[key].min_version, 4 if key == 3 else 0), APIS[key].latest_stable)
        try:
            asked, theirs = kafka.ask(key, version, seed)
            _, ours = penstock.ask(key, version, seed)
        except EncodeError:
            continue  # this version can't carry the value
        if getattr(asked, "topics", ()) is None:
            continue  # a request for all resources
        known = "UNKNOWN_SERVER_ERROR" in theirs or theirs == "(no answer)" or "POLICY_VIOLATION" in ours
        if theirs != ours and not known:
            lines = [line for line in difflib.ndiff(theirs.split("\n"), ours.split("\n")) if line[0] in "+-"]
            differing.append("\n".join([f"{APIS[key].name} v{version}: {asked}", *lines]))
    for stage in (penstock, kafka):
        stage.peer.close()
    assert not differing, "Kafka (-), Penstock (+):\n" + "\n\n".join(differing)
