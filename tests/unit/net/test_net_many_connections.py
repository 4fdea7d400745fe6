"""Tests that idle connections take little memory and do not slow down active connections."""

import os
import subprocess
import sys

import pytest
from net_harness import run_on, serving, until

from penstock.net.limits import Limits

# Holds its connections until its standard input ends. A process of its own, so that its half is not counted as ours.
HOLD_CONNECTIONS = """
import resource, socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
sys.stdin.read()
"""

MAX_BYTES_PER_IDLE_CONNECTION = 8 * 1024


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def hold_and_measure(count: int) -> float:
    """Opens idle connections, and returns the memory per connection in bytes, with its transport."""
    per_connection = 0.0

    async def scenario() -> None:
        nonlocal per_connection
        async with serving(limits=Limits(socket_listen_backlog_size=1000)) as harness:
            client = await harness.client()
            assert await client.ask(b"alone") == b"<alone>"
            before = resident_bytes()
            command = [sys.executable, "-c", HOLD_CONNECTIONS, str(harness.port), str(count)]
            holder = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220
            await until(lambda: harness.server.counts.total == count + 1)
            per_connection = (resident_bytes() - before) / count
            for number in range(100):
                assert await client.ask(b"%d" % number) == b"<%d>" % number
            holder.communicate()
            await until(lambda: harness.server.counts.total == 1)

    run_on("uvloop", scenario(), timeout_s=100)
    return per_connection


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_thousand_idle_connections_take_little_memory_each() -> None:
    assert hold_and_measure(1_000) < MAX_BYTES_PER_IDLE_CONNECTION


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ten_thousand_idle_connections_take_little_memory_each() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 11_000:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        assert hold_and_measure(10_000) < MAX_BYTES_PER_IDLE_CONNECTION
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
