"""Sends produce requests over plain sockets. Each request is built once and sent repeatedly, the same bytes to both
brokers.

These requests are for cells that stock clients can't measure: a closed loop over many connections, filling a log fast,
and the moment at which a broker accepts writes again. Version 9 identifies topics by name, so that a request is valid
on any broker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from dataclasses import dataclass
from itertools import cycle

from penstock.net.loop import run
from penstock.protocol.codec import encode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.records.build import build_batch

VERSION = 9
HEADER = struct.Struct(">hhih")
SIZE = struct.Struct(">i")
CLIENT = b"bench"


def produce_frame(topic: str, partition: int, records: int, size: int, acks: int = 1) -> bytes:
    """Returns a whole frame, with size and header, that has one batch of random values."""
    now = int(time.time() * 1000)
    batch = build_batch([(now, None, os.urandom(size), ()) for _ in range(records)])
    request = ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]),
        ],
    )
    body = HEADER.pack(0, VERSION, 1, len(CLIENT)) + CLIENT + b"\0" + encode(request, VERSION)
    return SIZE.pack(len(body)) + body


def error_code(answer: bytes, topic: str) -> int:
    """Returns the error code of the only partition in a Produce v9 response. All fields before it have a known
    length."""
    at = 4 + 1 + 1 + 1 + len(topic) + 1 + 4  # correlation, tags, topics, name length, name, partitions, index
    return int(struct.unpack_from(">h", answer, at)[0])


def ask(port: int, frame: bytes, timeout: float = 5.0) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(frame)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> bytes:
    head = _exactly(connection, 4)
    return _exactly(connection, SIZE.unpack(head)[0])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)


def wait_for_writes(port: int, topic: str, partitions: int, deadline: float) -> None:
    """Waits until every partition has accepted a record."""
    for partition in range(partitions):
        frame = produce_frame(topic, partition, 1, 10)
        while True:
            try:
                if error_code(ask(port, frame), topic) == 0:
                    break
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition} accepts no writes")
            time.sleep(0.005)


def fill(port: int, topic: str, partitions: int, total_bytes: int, *, records: int = 880, in_flight: int = 4) -> int:
    """Writes about the given number of bytes in batches of `records` records of 1 KiB; returns the exact number."""
    frames = [produce_frame(topic, partition, records, 1024) for partition in range(partitions)]
    turns = cycle(frames)
    sent = waiting = 0
    with socket.create_connection(("127.0.0.1", port), 60.0) as connection:
        while sent < total_bytes or waiting:
            if sent < total_bytes and waiting < in_flight:
                frame = next(turns)
                connection.sendall(frame)
                sent += len(frame)
                waiting += 1
            else:
                code = error_code(read_answer(connection), topic)
                if code != 0:
                    raise RuntimeError(f"the broker refused a batch with error {code}")
                waiting -= 1
    return sent


@dataclass(slots=True)
class ClosedLoop:
    requests: int
    seconds: float
    latencies_ms: list[float]


def closed_loop(port: int, topic: str, partitions: int, connections: int, seconds: float, acks: int = 1) -> ClosedLoop:
    """Sends requests of one record on every connection. Each request follows the response to the previous one."""
    return run(_closed_loop(port, topic, partitions, connections, seconds, acks))


async def _closed_loop(
    port: int, topic: str, partitions: int, connections: int, seconds: float, acks: int
) -> ClosedLoop:
    latencies: list[float] = []
    # The loop's clock is not used: uvloop's has whole milliseconds only.
    end = time.perf_counter() + seconds

    async def one(index: int) -> None:
        frame = produce_frame(topic, index % partitions, 1, 100, acks)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(frame)
            head = await reader.readexactly(4)
            answer = await reader.readexactly(SIZE.unpack(head)[0])
            if error_code(answer, topic) != 0:
                raise RuntimeError(f"the broker refused a record with error {error_code(answer, topic)}")
            latencies.append((time.perf_counter() - began) * 1000)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(index) for index in range(connections)))
    return ClosedLoop(len(latencies), time.perf_counter() - began, latencies)
