"""`penstock up --nodes N` runs a process per node, merges their logs into one stream and stops all nodes together.

Each node is `penstock start` with a properties file beside its data, exactly as on separate machines. A node that
crashes is restarted. If a node fails its first start, all nodes are stopped and its exit code is returned.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import overrides
from penstock.cli.serve import STOP_SIGNALS, on_signals, ready_line
from penstock.cli.up_http import http_is_optional, http_listeners
from penstock.cli.up_secure import Secured, security_of

if TYPE_CHECKING:
    from penstock.node.local_cluster import LocalNode

COLOURS = (36, 33, 35, 32, 34, 31, 96)
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
STOP_LIMIT_S = 60.0
CONTROLLERS_ABOVE = 100  # distance of controller ports from client ports, if those ports are free
LINE_LIMIT = 1 << 20


def run_nodes(args: argparse.Namespace, where: str) -> int:
    from penstock.net.loop import run

    with _directory(args, where) as directory:
        files, first_node = os.path.join(directory, "security"), os.path.join(directory, "1")
        with security_of(args, files, first_node) as secured:
            nodes = prepare(args, directory, secured)
            return run(_Cluster(nodes, directory, args, secured.print_clients).run())


@contextmanager
def _directory(args: argparse.Namespace, where: str) -> Iterator[str]:
    if not args.ephemeral:
        yield os.path.join(where, "nodes")
        return
    import tempfile

    # Memory would not survive a node's restart: use a directory that is deleted at the end.
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        yield directory


# --- preparing nodes ------------------------------------------------------------------------------------------------


def prepare(args: argparse.Namespace, directory: str, secured: Secured) -> list[LocalNode]:
    """Returns the settings of all nodes.

    Writes the nodes' properties files, and formats new data directories.
    """
    import random

    from penstock.disk.api import DIRECTORY_MODE, DiskError
    from penstock.disk.real import RealDisk
    from penstock.metadata.configs.definition import ConfigError
    from penstock.metadata.configs.protection import check_protection
    from penstock.metadata.configs.settings import Settings
    from penstock.node.clock import SystemClock
    from penstock.node.local_cluster import format_new, local_nodes
    from penstock.node.storage import StorageError

    there = _nodes_in(directory)
    if there and there != args.nodes:
        sentence = f"{directory} holds a cluster of {there} nodes: use --nodes {there}, or another --data"
        raise Failure(sentence, Exit.STORAGE)
    ports = _client_ports(args)
    controllers = _controller_ports(directory, args) or _choose_controller_ports(args, ports)
    homes = [os.path.join(directory, str(index + 1)) for index in range(args.nodes)]
    nodes = local_nodes(
        homes,
        host=args.host,
        ports=ports,
        controller_ports=controllers,
        overrides={**secured.properties, **overrides(args.override)},
        http=http_listeners(args),
        listener=secured.listener,
    )
    try:
        for node in nodes:
            check_protection(Settings(node.properties).static)
        os.makedirs(directory, DIRECTORY_MODE, exist_ok=True)
        for node in nodes:
            _write_properties(_properties_file(node), node)
        disk = RealDisk()
        format_new(
            [disk] * len(nodes),
            nodes,
            controllers,
            host=args.host,
            random=random.SystemRandom(),
            now_ms=SystemClock().wall_ms(),
            users=secured.users,
            acls=secured.acls,
        )
    except ConfigError as problem:
        raise Failure(str(problem), Exit.USAGE) from problem
    except (StorageError, DiskError, OSError) as problem:
        raise Failure(str(problem), Exit.STORAGE) from problem
    return nodes


def _properties_file(node: LocalNode) -> str:
    return f"{node.directory}.properties"


def _write_properties(path: str, node: LocalNode) -> None:
    from penstock.disk.api import private

    lines = ["# Written by `penstock up --nodes` at every start: change it with --override.\n"]
    lines += [f"{name}={value}\n" for name, value in node.properties.items()]
    beside = f"{path}.tmp"
    with open(beside, "w", encoding="utf-8", opener=private) as file:
        file.writelines(lines)
    os.replace(beside, path)


def _nodes_in(directory: str) -> int:
    if not os.path.isdir(directory):
        return 0
    return sum(os.path.exists(os.path.join(directory, name, "meta.properties")) for name in os.listdir(directory))


def _controller_ports(directory: str, args: argparse.Namespace) -> list[int]:
    """Returns the controller ports with which an existing cluster was formatted; an empty list for a new cluster."""
    ports = []
    for index in range(args.nodes):
        path = os.path.join(directory, f"{index + 1}.properties")
        if not os.path.exists(path) or not _nodes_in(directory):
            return []
        with open(path, encoding="utf-8") as file:
            found = re.search(r"^listeners=.*CONTROLLER://.*:(\d+)\s*$", file.read(), re.MULTILINE)
        if found is None:
            raise Failure(
                f"{path} has no controller listener: restore the file, or choose another --data than {directory}",
                Exit.STORAGE,
            )
        ports.append(int(found[1]))
    return ports


def _client_ports(args: argparse.Namespace) -> list[int]:
    if args.port == 0:
        return _free_ports(args.host, args.nodes)
    if args.port + args.nodes > 65536:
        raise Failure(
            f"--port {args.port} leaves too few ports above it for {args.nodes} nodes: choose a lower port", Exit.USAGE
        )
    return [args.port + index for index in range(args.nodes)]


def _choose_controller_ports(args: argparse.Namespace, ports: Sequence[int]) -> list[int]:
    from penstock.net.ports import is_free

    wanted = [port + CONTROLLERS_ABOVE for port in ports]
    if args.port and wanted[-1] < 65536 and all(is_free(args.host, port) for port in wanted):
        return wanted
    return _free_ports(args.host, args.nodes)


def _free_ports(host: str, count: int) -> list[int]:
    from penstock.net.ports import free_ports

    try:
        return free_ports(host, count)
    except OSError as problem:
        raise Failure(
            f"can't listen on {host}: {problem.strerror}: choose another --host", Exit.ADDRESS_IN_USE
        ) from problem


# --- running nodes --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Child:
    node: LocalNode
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    failures: int = 0
    was_ready: bool = False
    console: str | None = None


class _Cluster:
    def __init__(
        self,
        nodes: Sequence[LocalNode],
        directory: str,
        args: argparse.Namespace,
        after_ready: Callable[[str], None] | None = None,
    ) -> None:
        self._children = [_Child(node) for node in nodes]
        self._directory = directory
        self._args = args
        self._after_ready = after_ready
        self._stopping = asyncio.Event()
        self._signals = 0
        self._code: int = Exit.OK
        self._coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    async def run(self) -> int:
        on_signals(self._on_signal)
        keeping = [asyncio.ensure_future(self._keep(child)) for child in self._children]
        announcing = asyncio.ensure_future(self._announce())
        await self._stopping.wait()
        announcing.cancel()
        await self._stop_all()
        await asyncio.gather(announcing, *keeping, return_exceptions=True)
        return self._code

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            output.note("stopping; once more to stop at once")
            self._stopping.set()
            return
        for child in self._running():
            child.kill()
        os._exit(128 + number)

    def _running(self) -> list[asyncio.subprocess.Process]:
        found = [child.process for child in self._children]
        return [process for process in found if process is not None and process.returncode is None]

    async def _announce(self) -> None:
        for child in self._children:
            await child.ready.wait()
        host = f"[{self._args.host}]" if ":" in self._args.host else self._args.host
        bootstrap = ",".join(f"{host}:{child.node.port}" for child in self._children)
        console = ",".join(child.console for child in self._children if child.console) or None
        print(ready_line(bootstrap, self._directory, os.getpid(), self._args.output, console), flush=True)
        if self._after_ready is not None:
            self._after_ready(bootstrap)

    async def _keep(self, child: _Child) -> None:
        """Runs one node, and restarts it whenever it crashes, until the cluster stops."""
        while not self._stopping.is_set():
            code = await self._run_once(child)
            child.process = None
            if self._stopping.is_set():
                return
            name = f"node {child.node.node_id}"
            if not child.was_ready:
                output.note(f"{name} can't start (its error is above); stopping the others")
                self._code = code if code > 0 else Exit.FAILED
                self._stopping.set()
                return
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(child.failures, 10))
            child.failures += 1
            output.note(f"{name} {how}; restarting it in {pause:g} s")
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                continue

    async def _run_once(self, child: _Child) -> int:
        words = [sys.executable, "-m", "penstock.cli.main", "start", _properties_file(child.node)]
        words += [
            "--output",
            "json",
            "--until-stdin-ends",
            *(["--http-optional"] * http_is_optional(self._args)),
            *(["-" + "v" * self._args.verbose] * bool(self._args.verbose)),
        ]
        process = child.process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,  # held open: if this process dies, the nodes see stdin end and stop
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach this process only, which then stops the nodes
            limit=LINE_LIMIT,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(self._watch(child, process.stdout), self._relay(child, process.stderr))
        return await process.wait()

    async def _watch(self, child: _Child, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            if isinstance(said, dict) and said.get("ready"):
                again = child.was_ready
                child.was_ready = True
                child.failures = 0
                child.console = said.get("console")
                child.ready.set()
                if again:
                    output.note(f"node {child.node.node_id} is back")
            else:
                self._say(child, line)

    async def _relay(self, child: _Child, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self._say(child, line)

    def _say(self, child: _Child, line: bytes) -> None:
        text = output.printable(line.decode(errors="replace").rstrip("\n"))
        prefix = f"node {child.node.node_id} |"
        if self._coloured:
            prefix = f"\x1b[{COLOURS[(child.node.node_id - 1) % len(COLOURS)]}m{prefix}\x1b[0m"
        print(f"{prefix} {text}", file=sys.stderr, flush=True)

    async def _stop_all(self) -> None:
        for process in self._running():
            process.send_signal(STOP_SIGNALS[0])
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                for process in self._running():
                    await process.wait()
        except TimeoutError:
            output.note(f"not stopped within {STOP_LIMIT_S:.0f} s: killing the remaining nodes")
            for process in self._running():
                process.kill()
            self._code = Exit.FAILED
