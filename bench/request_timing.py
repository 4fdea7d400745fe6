"""Measures what the timing of requests costs: the same requests with and without it, side by side in one process.

    python -m bench.request_timing

Frames go through a real connection, dispatcher, handler and log in memory; only the socket is replaced. Rounds with
timing, rounds without timing, and more rounds without timing (the control) alternate, so that a change of the machine's
speed affects all three. The result is the ratio of CPU times in the fastest quarter of the rounds.
"""

from __future__ import annotations

import gc
import struct
import time
from typing import Any, cast

from bench.raw import produce_frame
from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.requests.request_times import RequestTimes
from penstock.net.connection import Connection
from penstock.node.node import Node
from penstock.protocol.codec import encode
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.testing import Broker

EVERY = 1024
#: A busy API has had so many requests that one of EVERY is timed.
WARM_UP, ROUNDS, REQUESTS = 65, 40, 1024
TOPIC = "t"


class NoSocket:
    """Takes all bytes at once, and counts them."""

    def __init__(self) -> None:
        self.sent = 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += len(data)

    def close(self) -> None:
        pass


def fetch_frame() -> bytes:
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)]
    topics = [FetchTopic(topic=TOPIC, partitions=partitions)]
    request = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    body = struct.pack(">hhih", 1, 11, 7, -1) + encode(request, 11)
    return struct.pack(">i", len(body)) + body


def one_round(connection: Connection, node: Node, dispatcher: Dispatcher, frame: bytes) -> float:
    """Returns the microseconds of CPU time of one request."""
    server = node._server
    server.use(dispatcher)
    view, turns, size = server.receive_view, server.turns, len(frame)
    began = time.thread_time_ns()
    for _ in range(REQUESTS):
        turns.open = turns.spent = False
        view[:size] = frame
        connection.buffer_updated(size)
    return (time.thread_time_ns() - began) / REQUESTS / 1000


async def measured(node: Node) -> dict[str, dict[str, list[float]]]:
    broker = node.broker
    transport = NoSocket()
    connection = Connection(node._server, node._server.listeners[0])
    connection.connection_made(cast(Any, transport))
    ways = {
        name: Dispatcher(broker, times=RequestTimes(broker.clock.nanoseconds, every))
        for name, every in (("timed", EVERY), ("not timed", 0), ("control", 0))
    }
    frames = {"produce of 1 KB": produce_frame(TOPIC, 0, 1, 1000), "fetch of 1 KB": fetch_frame()}
    found: dict[str, dict[str, list[float]]] = {}
    gc.collect()
    gc.disable()
    for what, frame in frames.items():
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(WARM_UP):
            one_round(connection, node, ways["timed"], frame)
        for number in range(ROUNDS):
            order = list(ways.items())
            for name, dispatcher in order[number % 3 :] + order[: number % 3]:
                times[name].append(one_round(connection, node, dispatcher, frame))
        found[what] = times
    gc.enable()
    assert transport.sent, "no response was sent"
    connection.connection_lost(None)
    return found


def quickest(times: list[float]) -> float:
    quarter = sorted(times)[: len(times) // 4]
    return sum(quarter) / len(quarter)


def main() -> None:
    with Broker(topics={TOPIC: 1}) as broker:
        found = broker.run(measured(broker.node))
    print(f"{'one of ' + str(EVERY) + ' is timed':22}{'not timed':>12}{'timed':>12}{'ratio':>9}{'control':>9}")
    for what, times in found.items():
        base = quickest(times["not timed"])
        timed, control = quickest(times["timed"]), quickest(times["control"])
        print(f"{what:22}{base:9.2f} µs{timed:9.2f} µs{timed / base:9.4f}{control / base:9.4f}")


if __name__ == "__main__":
    main()
