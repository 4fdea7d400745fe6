"""Sends a typical request in every version of every API: all are answered, and both brokers answer the same."""

from __future__ import annotations

import re

import pytest
from oracle_peer import Peer
from oracle_transcript import Masks, render
from oracle_typical import KEYS, request, typical

from penstock.protocol.apis import APIS
from penstock.protocol.errors import ErrorCode

LISTED_IN_FULL = {"api_keys", "supported_features", "finalized_features"}


def answers(peer: Peer, key: int) -> list[str]:
    """Returns one text per version. Lists are sorted, because Kafka takes some of them from hash maps."""
    peer.have_offsets_topic()
    peer.have_transactions_topic()
    topic, group = peer.topic(), peer.unique("g")
    said = []
    for version in range(APIS[key].min_version, APIS[key].latest_stable + 1):
        asked = request(key, version, typical(peer, key, topic, group))
        peer.settle(lambda: not _is_loading(peer, key, version, asked))  # noqa: B023
        answer = peer.quietly(asked, version)
        for name in LISTED_IN_FULL:
            if hasattr(answer, name):
                setattr(answer, name, [])
        masks = Masks()
        masks.topic_ids = peer.masks.topic_ids
        text = render(answer, version, masks)
        said.append("\n".join(sorted(line for line in text.split("\n") if "name=penstock." not in line)))
    return said


def _is_loading(peer: Peer, key: int, version: int, asked: object) -> bool:
    """True while Kafka has no producer ids yet, shortly after its start."""
    if key != 22:
        return False
    answer = peer.quietly(asked, version)  # type: ignore[arg-type]
    return bool(answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: APIS[key].name)
def test_every_version_of_an_api_is_answered_without_unknown_server_error(peer: Peer, key: int) -> None:
    for text in answers(peer, key):
        assert "UNKNOWN_SERVER_ERROR" not in text


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS, ids=lambda key: APIS[key].name)
def test_every_version_of_an_api_gets_the_same_answer_from_kafka_and_penstock(
    penstock_address: tuple[str, int], kafka_address: tuple[str, int], key: int
) -> None:
    heard = []
    for name, address in (("penstock", penstock_address), ("kafka", kafka_address)):
        peer = Peer(name, address)
        heard.append([re.sub(r" error_message=(…|null)", "", text) for text in answers(peer, key)])
        peer.close()
    assert heard[0] == heard[1]
