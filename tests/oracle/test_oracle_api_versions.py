"""ApiVersions, and unsupported requests: other versions, other API keys, invalid bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render
from oracle_wire import Closed

from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.protocol.messages.headers import RequestHeader


def heard_after(peer: Peer, data: bytes) -> str:
    """Returns a broker's reaction to these bytes on a new connection."""
    wire = peer.connect()
    try:
        wire.send_bytes(data)
        wire.receive_frame()
        return "answered"
    except Closed:
        return "closed"


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize("version", [5, 99, -1, 32767])
def test_api_versions_request_of_an_unknown_version_is_answered_in_version_0(peer: Peer, version: int) -> None:
    wire = peer.connect()
    wire.send_frame(struct.pack(">hhih", 18, version, 7, -1) + b"\x00")
    answer = wire.receive_frame()
    assert answer[:4] == struct.pack(">i", 7)
    peer.note(render(decode(ApiVersionsResponse, 0, answer, 4), 0, peer.masks))
    peer.said("""
        ApiVersions v0 error_code=UNSUPPORTED_VERSION
          api_keys: api_key=18 max_version=4
    """)
    peer.note(f"and then {wire.send(ApiVersionsRequest(), 0) and len(wire.receive_frame()) > 100}")
    peer.said("""
        and then True
    """)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_every_version_of_api_versions_lists_the_features_and_versions_of_kafka(peer: Peer, version: int) -> None:
    software: dict[str, Any] = (
        {"client_software_name": "oracle", "client_software_version": "1.0"} if version >= 3 else {}
    )
    answer = peer.quietly(ApiVersionsRequest(**software), version)
    answer.api_keys = [key for key in answer.api_keys if key.api_key in (0, 1, 3, 18, 19)]
    peer.note(f"{len(answer.supported_features)} {answer.finalized_features_epoch >= 0}")
    answer.supported_features.sort(key=lambda feature: feature.name)
    answer.finalized_features.sort(key=lambda feature: feature.name)
    peer.note(render(answer, version, peer.masks))
    assert answer.error_code == 0
    if version == 0:
        peer.said("""
            0 False
            ApiVersions v0
              api_keys: max_version=13
              api_keys: api_key=1 min_version=4 max_version=18
              api_keys: api_key=3 max_version=13
              api_keys: api_key=18 max_version=4
              api_keys: api_key=19 min_version=2 max_version=7
        """)
    elif version == 3:
        peer.said("""
            1 True
            ApiVersions v3
              api_keys: max_version=13
              api_keys: api_key=1 min_version=4 max_version=18
              api_keys: api_key=3 max_version=13
              api_keys: api_key=18 max_version=4
              api_keys: api_key=19 min_version=2 max_version=7
              supported_features: name=metadata.version min_version=7 max_version=30
              finalized_features: name=eligible.leader.replicas.version max_version_level=1 min_version_level=1
              finalized_features: name=group.version max_version_level=1 min_version_level=1
              finalized_features: name=kraft.version max_version_level=1 min_version_level=1
              finalized_features: name=metadata.version max_version_level=30 min_version_level=30
              finalized_features: name=share.version max_version_level=1 min_version_level=1
              finalized_features: name=streams.version max_version_level=1 min_version_level=1
              finalized_features: name=transaction.version max_version_level=2 min_version_level=2
        """)
    elif version == 4:
        peer.said("""
            7 True
            ApiVersions v4
              api_keys: max_version=13
              api_keys: api_key=1 min_version=4 max_version=18
              api_keys: api_key=3 max_version=13
              api_keys: api_key=18 max_version=4
              api_keys: api_key=19 min_version=2 max_version=7
              supported_features: name=eligible.leader.replicas.version max_version=1
              supported_features: name=group.version max_version=1
              supported_features: name=kraft.version max_version=1
              supported_features: name=metadata.version min_version=7 max_version=30
              supported_features: name=share.version max_version=1
              supported_features: name=streams.version max_version=1
              supported_features: name=transaction.version max_version=2
              finalized_features: name=eligible.leader.replicas.version max_version_level=1 min_version_level=1
              finalized_features: name=group.version max_version_level=1 min_version_level=1
              finalized_features: name=kraft.version max_version_level=1 min_version_level=1
              finalized_features: name=metadata.version max_version_level=30 min_version_level=30
              finalized_features: name=share.version max_version_level=1 min_version_level=1
              finalized_features: name=streams.version max_version_level=1 min_version_level=1
              finalized_features: name=transaction.version max_version_level=2 min_version_level=2
        """)


def test_api_versions_request_with_an_invalid_software_name_gets_invalid_request(peer: Peer) -> None:
    for name in ("", " ", "bad name", "-x", "x-", "ok\n", "é", "a_b", ".", "a", "a-b.c", "1"):
        for version, software in ((3, (name, "1")), (4, ("fine", name))):
            request = ApiVersionsRequest(client_software_name=software[0], client_software_version=software[1])
            peer.note(f"{software} {ErrorCode(peer.quietly(request, version).error_code).name}")
    peer.said("""
        ('', '1') INVALID_REQUEST
        ('fine', '') INVALID_REQUEST
        (' ', '1') INVALID_REQUEST
        ('fine', ' ') INVALID_REQUEST
        ('bad name', '1') INVALID_REQUEST
        ('fine', 'bad name') INVALID_REQUEST
        ('-x', '1') INVALID_REQUEST
        ('fine', '-x') INVALID_REQUEST
        ('x-', '1') INVALID_REQUEST
        ('fine', 'x-') INVALID_REQUEST
        ('ok\\n', '1') INVALID_REQUEST
        ('fine', 'ok\\n') INVALID_REQUEST
        ('é', '1') INVALID_REQUEST
        ('fine', 'é') INVALID_REQUEST
        ('a_b', '1') INVALID_REQUEST
        ('fine', 'a_b') INVALID_REQUEST
        ('.', '1') INVALID_REQUEST
        ('fine', '.') INVALID_REQUEST
        ('a', '1') NONE
        ('fine', 'a') NONE
        ('a-b.c', '1') NONE
        ('fine', 'a-b.c') NONE
        ('1', '1') NONE
        ('fine', '1') NONE
    """)


UNSUPPORTED = {
    "an unknown key": (999, 0),
    "a negative key": (-1, 0),
    "a key of controllers": (52, 0),
    "Produce too old": (0, 2),
    "Produce too new": (0, 14),
    "Fetch too old": (1, 3),
    "Metadata too new": (3, 14),
    "Metadata negative": (3, -1),
    "LeaderAndIsr, removed": (4, 0),
    "ControlledShutdown, removed": (7, 0),
    "Fetch too new": (1, 19),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_request_with_an_unsupported_api_or_version_closes_the_connection(peer: Peer, what: str) -> None:
    key, version = UNSUPPORTED[what]
    assert heard_after(peer, frame(struct.pack(">hhih", key, version, 1, -1) + bytes(64))) == "closed"


def header(key: int, version: int, header_version: int) -> bytes:
    head = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=1, client_id="c")
    return encode(head, header_version)


GARBAGE = {
    "zeros": frame(bytes(4)),
    "nothing in the frame": frame(b""),
    "a negative size": struct.pack(">i", -5),
    "a size past the limit": struct.pack(">i", 0x7FFFFFFF),
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a client id longer than the frame": frame(struct.pack(">hhih", 18, 0, 1, 500) + b"abc"),
    "a Metadata array longer than the frame": frame(header(3, 1, 1) + struct.pack(">i", 1_000_000)),
    "a Metadata request that ends early": frame(header(3, 4, 1) + struct.pack(">i", 0)),
    "a null array where none may be": frame(header(20, 1, 1) + struct.pack(">ii", -1, 1000)),
    "a null string where none may be": frame(header(12, 0, 1) + struct.pack(">hih", -1, 0, 0)),
    "bytes after a Metadata request": frame(header(3, 1, 1) + struct.pack(">i", 0) + b"more"),
    "bytes after an ApiVersions request": frame(header(18, 0, 1) + b"more"),
}


def test_frame_of_invalid_bytes_closes_only_the_connection_that_sent_it(peer: Peer) -> None:
    for what, data in GARBAGE.items():
        peer.note(f"{what}: {heard_after(peer, data)}")
    peer.said("""
        zeros: closed
        nothing in the frame: closed
        a negative size: closed
        a size past the limit: closed
        a TLS hello: closed
        an HTTP request: closed
        a client id longer than the frame: closed
        a Metadata array longer than the frame: closed
        a Metadata request that ends early: closed
        a null array where none may be: closed
        a null string where none may be: closed
        bytes after a Metadata request: answered
        bytes after an ApiVersions request: answered
    """)
    assert peer.quietly(ApiVersionsRequest(), 0).error_code == 0


STRICTER_HERE = {
    "a client id that is not UTF-8": frame(struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xfe"),
    "a nullable array of length -2": frame(header(3, 1, 1) + struct.pack(">i", -2)),
}


@pytest.mark.parametrize("what", STRICTER_HERE)
def test_malformed_frames_that_kafka_accepts_are_refused_by_penstock(peer: Peer, what: str) -> None:
    assert heard_after(peer, STRICTER_HERE[what]) == {"kafka": "answered", "penstock": "closed"}[peer.name]


def test_pipelined_requests_of_one_connection_are_answered_in_order(peer: Peer) -> None:
    wire = peer.connect()
    sent = [wire.send(ApiVersionsRequest(), 0) for _ in range(20)]
    for correlation_id in sent:
        assert wire.receive(18, 0, correlation_id).error_code == 0
