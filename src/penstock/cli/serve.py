"""Runs a node in the foreground until a signal, for `penstock up` and `penstock start`.

The first SIGTERM or SIGINT stops the node cleanly; a second signal ends the process at once. A failed start is reported
in one line. Each cause has its own exit code: a port in use, a directory in use, a setting that can't work.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.disk.api import Disk
    from penstock.http.pipelines import Pipeline
    from penstock.metadata.configs.settings import Settings
    from penstock.node.node import Node

STILL_STARTING_S = 5.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def configure_logging(verbosity: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class PrintableFormatter(logging.Formatter):
    """Formats log lines and escapes control characters in them.

    Otherwise a client id or topic name could move the cursor or begin another log line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return output.printable(super().formatMessage(record))

    def formatException(self, found: Any) -> str:
        return "\n".join(map(output.printable, super().formatException(found).split("\n")))


def node_to_serve(settings: Settings, disk: Disk, *, http_optional: bool) -> Node:
    """Returns the node that this process runs. The node's console lists the pipelines of this machine.

    A fatal failure of the node ends the process. Raises ConfigError and ListenerError.
    """
    from penstock.node.local import make_node

    return make_node(settings, disk, on_fatal=_end_at_once, http_optional=http_optional, pipelines=_pipelines)


def serve(
    node: Node,
    where: str,
    how: str,
    *,
    until_stdin_ends: bool = False,
    after_ready: Callable[[str], None] | None = None,
) -> int:
    """Starts the node, prints `ready`, and runs until a signal. With `until_stdin_ends`, also stops when stdin ends.

    Once the node is ready, calls `after_ready` with the node's address.
    """
    from penstock.net.loop import run

    return run(_serve(node, where, how, until_stdin_ends, after_ready))


def _end_at_once(error: Exception) -> None:
    """Ends the process at once after a fatal failure.

    A broker that ran on without its disk would stay the leader of its partitions, and no failover would begin.
    """
    from penstock.node.storage import StorageError

    sentence = f"this node can't go on without its disk ({error}): repair the disk and start again"
    output.note(f"error: {error if isinstance(error, StorageError) else sentence}")
    os._exit(Exit.STORAGE)


def _pipelines() -> list[Pipeline]:
    from penstock.http.pipelines import pipelines_here

    return pipelines_here()


async def _serve(
    node: Node, where: str, how: str, until_stdin_ends: bool, after_ready: Callable[[str], None] | None = None
) -> int:
    reminding = asyncio.ensure_future(_report_long_start())
    try:
        with failures_in_one_line(node):
            await node.start()
    finally:
        reminding.cancel()
    _make_collections_rare()
    stopped = asyncio.Event()
    signals = 0

    def on_signal(number: int) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(128 + number)
        stopped.set()

    on_signals(on_signal)
    watching = asyncio.ensure_future(_stdin_ends(stopped)) if until_stdin_ends else None
    print(ready_line(node.bootstrap, where, os.getpid(), how, node.http.url), flush=True)
    if after_ready is not None:
        after_ready(node.bootstrap)
    if node.http.problem is not None:
        output.note(f"console and metrics are off: {node.http.problem}")
    await stopped.wait()
    if watching is not None:
        watching.cancel()
    else:
        output.note("stopping; once more to stop at once")
    await node.stop()
    return Exit.OK


async def _stdin_ends(stopped: asyncio.Event) -> None:
    """Waits for the end of stdin. Stdin ends even if the parent process crashes or is killed."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    stopped.set()


def _make_collections_rare() -> None:
    """Freezes the objects loaded so far, and makes garbage collections rare.

    Collections find little, because requests create no reference cycles.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _report_long_start() -> None:
    """Prints every few seconds that the node is still starting.

    A start takes long after a crash, because the node verifies its logs first.
    """
    waited = 0.0
    while True:
        await asyncio.sleep(STILL_STARTING_S)
        waited += STILL_STARTING_S
        output.note(f"still starting after {waited:.0f} s: opening logs and, after a crash, checking them")


def on_signals(handle: Any) -> None:
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        try:
            loop.add_signal_handler(number, handle, number)
        except NotImplementedError:  # Windows: handlers run between byte codes, so pass the signal to the loop
            signal.signal(number, lambda caught, _: loop.call_soon_threadsafe(handle, caught))


def ready_line(bootstrap: str, where: str, pid: int, how: str, console: str | None) -> str:
    """Returns the `ready` line; with a second line for the console's URL if there is a console."""
    if how == "json":
        told = {"ready": True, "bootstrap": bootstrap, "directory": where, "pid": pid, "console": console}
        return json.dumps(told)
    return f"ready {bootstrap} directory={where} pid={pid}" + (f"\nconsole {console}" if console else "")


@contextmanager
def failures_in_one_line(node: Node) -> Iterator[None]:
    from penstock.disk.api import DirectoryLockedError, DiskError
    from penstock.log.directory import DirectoryError
    from penstock.metadata.configs.definition import ConfigError
    from penstock.node.listeners import HttpUnavailableError, ListenerError
    from penstock.node.storage import StorageError

    try:
        yield
    except (DirectoryLockedError, StorageError, DirectoryError) as problem:
        raise Failure(str(problem), Exit.STORAGE) from problem
    except (ConfigError, ListenerError) as problem:
        raise Failure(str(problem), Exit.USAGE) from problem
    except HttpUnavailableError as problem:
        raise Failure(str(problem), Exit.ADDRESS_IN_USE) from problem
    except DiskError as problem:
        raise Failure(f"the data directory can't be used: {problem}", Exit.STORAGE) from problem
    except OSError as problem:
        raise _cannot_listen(node, problem) from problem


def _cannot_listen(node: Node, problem: OSError) -> Failure:
    listeners = ", ".join(node.settings.list("listeners"))
    if problem.errno == errno.EADDRINUSE:
        return Failure(
            f"{listeners}: the port is taken; stop the process that uses it, or choose another port",
            Exit.ADDRESS_IN_USE,
        )
    if problem.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
        return Failure(f"{listeners}: can't listen there: {problem.strerror}", Exit.ADDRESS_IN_USE)
    return Failure(f"can't start: {problem}", Exit.STORAGE)
