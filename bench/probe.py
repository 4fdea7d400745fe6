"""`python -m bench.probe PORT`: sends small requests to a broker until its input ends, and prints how long they took.

It runs in a process of its own, so that a busy client does not delay it. The longest response time shows for how long
the broker served no other client.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from types import TracebackType

from bench.load import latency_summary
from bench.raw import HEADER, SIZE, read_answer

API_VERSIONS = 18
PAUSE_S = 0.005


class Probe:
    """Measures the response times of a broker inside the `with` block, in milliseconds."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.p99_ms = 0.0
        self.longest_ms = 0.0

    def __enter__(self) -> Probe:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.probe", str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        printed, _ = self._process.communicate(timeout=30)
        if kind is None:
            told = json.loads(printed)
            self.p99_ms, self.longest_ms = told["p99"], told["max"]


def main(port: int) -> None:
    body = HEADER.pack(API_VERSIONS, 0, 1, 5) + b"probe"
    frame = SIZE.pack(len(body)) + body
    latencies = []
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            began = time.monotonic()
            connection.sendall(frame)
            read_answer(connection)
            latencies.append((time.monotonic() - began) * 1000)
    print(json.dumps({**latency_summary(latencies), "max": max(latencies)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
