"""Simulates a machine with one node. The machine keeps its disk and clock, while its process starts and dies.

    off ──power on──► up, no process ──start──► starting ──► serving ──stop──► up, no process
                          ▲                        │             │
                          └─────── kill ◄──────────┴─────────────┘          power loss from anywhere: off

A kill keeps the page cache, a power loss loses it. A fault can place a kill or a power loss inside the n-th change of
the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from penstock.disk.volume import Directory, Severity, Volume
from penstock.log.free_space import MIN_FREE_BYTES
from penstock.metadata.image import MetadataImage
from penstock.sim.engine.clock import SimClock
from penstock.sim.engine.cluster_layout import ClusterLayout
from penstock.sim.engine.disk import DiskConditions, SimDisk
from penstock.sim.engine.loop import ProcessDied, ProcessKilled, ProcessLoop, run_in
from penstock.sim.engine.network import Fabric, SimNetwork
from penstock.sim.engine.node_code import this_version
from penstock.sim.engine.trace import Trace

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.events import NodeEvent
    from penstock.metadata.configs.settings import Settings
    from penstock.node.node import Node

DATA = "/data"
META = "/meta"
PORT = 9092
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"


SINGLE_NODE = ClusterLayout()


class State(Enum):
    OFF = "off"
    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class Machine:
    def __init__(
        self,
        node_id: int,
        fabric: Fabric,
        trace: Trace,
        clock: SimClock,
        seed: str,
        overrides: Mapping[str, str],
        layout: ClusterLayout = SINGLE_NODE,
    ) -> None:
        self.layout = layout
        self.node_id = node_id
        self.name = f"n{node_id}"
        self.fabric = fabric
        self.trace = trace
        self.clock = clock
        self.overrides = dict(overrides)
        self.random = Random(f"{seed}/{self.name}")  # noqa: S311
        self.volume = Volume(clock.wall_ms)
        self.conditions = DiskConditions()
        self.turn_cost_s = 0.0
        #: The version of the code that the next process runs.
        self.code = this_version()
        #: Log directories whose disks are not mounted, by path.
        self.unmounted: dict[str, Directory] = {}
        #: Number of disk faults under way: a start that fails meanwhile is no violation.
        self.disk_faults = 0
        self.state = State.DOWN
        #: True if the next disk is formatted to join an existing quorum.
        self.joins = layout.dynamic and not self.votes
        self.incarnation = 0
        self.node: Node | None = None
        self.loop: ProcessLoop | None = None
        self.disk: SimDisk | None = None
        #: Notified of everything that happens to the machine: a sentence, and the state that it enters, if it does.
        self.on_event: Callable[[Machine, str, State | None], None] = lambda machine, what, state: None
        self._on_disk_step: Callable[[str, str], None] | None = None
        #: Notified of every event that the node on this machine emits.
        self.on_node_event: Callable[[Machine, NodeEvent], None] = lambda machine, event: None
        #: Notified when the node has started.
        self.on_serving: Callable[[Machine], None] = lambda machine: None
        #: Notified of a start that failed without a disk fault, and of every stop that failed.
        self.on_failure: Callable[[Machine, Exception], None] = lambda machine, error: None
        fabric.host(self.name)

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.value}>"

    @property
    def address(self) -> str:
        return f"{self.name}:{PORT}"

    @property
    def serving(self) -> bool:
        return self.state is State.SERVING

    @property
    def offline(self) -> bool:
        """Returns True if the node has taken one of its log directories offline."""
        broker = self.broker
        return broker is not None and any(each.offline for each in broker.logs.dirs.all)

    @property
    def broker(self) -> Broker | None:
        """Returns the broker of the running node; None before it is built."""
        return None if self.node is None else self.node.broker_or_none

    @property
    def image(self) -> MetadataImage | None:
        """Returns the metadata image of the node on this machine; None unless the node serves requests."""
        broker = self.broker
        return broker.metadata.image if broker is not None and self.state is State.SERVING else None

    @property
    def holds_partitions(self) -> bool:
        return self.node_id in self.layout.brokers

    @property
    def votes(self) -> bool:
        return self.node_id in self.layout.controllers

    def settings(self) -> Settings:
        own = {
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "penstock.allow.plaintext": "true",
            "log.dirs": DATA,
            "penstock.events.topic.enable": "false",
            "penstock.request.timing.every": "0",  # the clock stands still within a pass
            MIN_FREE_BYTES: "0",  # disks fill up: a full disk is one of the faults
        }
        if not self.layout.single_node:
            own |= {"metadata.log.dir": META, **self.layout.node_settings(self.node_id, self.name, PORT)}
        settings: Settings = self.code.settings({**self.code.alone, **own, **self.overrides})
        return settings

    @property
    def data_directories(self) -> tuple[str, ...]:
        """Returns the log directories for partitions."""
        return self.settings().log_dirs

    @property
    def metadata_directory(self) -> str:
        """Returns the directory of the metadata log. In a cluster of one machine, it is one of the data directories."""
        return self.data_directories[0] if self.layout.single_node else META

    @property
    def min_free_bytes(self) -> int:
        """Returns the number of bytes that the node keeps free in each log directory; 0 if there is no limit.

        To keep these bytes free, the node refuses records of clients.
        """
        return self.settings().int(MIN_FREE_BYTES)

    # Starting and stopping.

    async def start(self) -> bool:
        """Starts the process and waits until the node serves. Returns False if the process dies or the node gives up
        first."""
        if self.state is State.OFF:
            self.fabric.power_back(self.name)
        self.incarnation += 1
        excused = self._start_may_fail
        loop = self.loop = self.fabric.timeline.process(f"{self.name}.{self.incarnation}")
        loop.turn_cost_s = self.turn_cost_s
        self.disk = SimDisk(self.volume, loop, self.random, self.trace, self.conditions)
        self.disk.on_step = self._on_disk_step
        self._enter(State.STARTING, "starts")
        try:
            await run_in(loop, self._boot(loop, self.disk))
        except ProcessDied:
            return False
        except Exception as error:
            if self.loop is loop:
                self._leave(f"could not start: {type(error).__name__}: {error}")
                if not excused and not self._start_may_fail:
                    self.on_failure(self, error)
            return False
        if self.loop is not loop:
            return False  # it gave up just as it was ready
        self._enter(State.SERVING, "serves")
        self.on_serving(self)
        return True

    @property
    def _start_may_fail(self) -> bool:
        """Returns True if a disk fault is under way that may stop a node from starting. The failure of a single log
        directory does not stop the node."""
        return self.disk_faults > bool(self.conditions.broken)

    async def _boot(self, loop: ProcessLoop, disk: SimDisk) -> None:
        node: Node
        node = self.node = self.code.node(
            self.settings(),
            disk=disk,
            network=SimNetwork(self.fabric, self.name, loop),
            clock=self.clock,
            random=Random(self.random.random()),  # noqa: S311
            on_fatal=lambda error: self._fatal(loop, error),
            observers=(lambda event: self._observe(loop, event),),
        )
        if self.layout.single_node:
            self.code.format_if_new(node)
        else:
            self._format(node)
        await node.start()

    def _observe(self, loop: ProcessLoop, event: NodeEvent) -> None:
        """Passes an event of the node to the run's observers. Events of a dead process are dropped."""
        if not loop.dead:
            self.on_node_event(self, event)

    def _format(self, node: Node) -> None:
        """Formats new directories, as an operator does with each new disk. Formats nothing while a disk is missing or
        broken."""
        if self.unmounted or self.conditions.broken:
            return
        paths, code = (META, *node.settings.log_dirs), self.code
        if any(code.read_meta_properties(node.disk, path) is None for path in paths):
            plan = code.format_plan(
                paths,
                self.node_id,
                cluster_id=CLUSTER_ID,
                metadata_directory=META,
                static_voters=not self.layout.dynamic,
                initial_controllers=self.layout.voters() if self.layout.dynamic and not self.joins else (),
                joins=self.joins,
                ignore_formatted=True,
            )
            code.format_storage(node.disk, plan, random=node.random, now_ms=node.clock.wall_ms())

    def _fatal(self, loop: ProcessLoop, error: Exception) -> None:
        """Ends the process of a node that reported a fatal error."""

        def leave() -> None:
            if self.loop is loop:
                self._leave(f"gives up: {error}")

        timeline = self.fabric.timeline
        timeline.at(timeline.now, leave)

    async def stop(self) -> bool:
        """Stops the node cleanly. Returns False if the node was not serving, or died while it stopped."""
        if self.node is None or self.loop is None or self.state is not State.SERVING:
            return False
        loop = self.loop
        self._enter(State.STOPPING, "stops")
        what = "has stopped"
        try:
            await run_in(loop, self.node.stop())
        except ProcessDied:
            return False
        except Exception as error:
            what = f"could not stop cleanly: {type(error).__name__}: {error}"
            self.on_failure(self, error)
        if self.loop is loop:
            self._leave(what)
        return True

    def kill(self) -> None:
        """Kills the process, as SIGKILL does."""
        if self.loop is not None:
            self._leave("is killed")

    def _leave(self, what: str) -> None:
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.kill()
            self.fabric.process_died(self.name, loop)
        if self.disk is not None:
            self.disk.release()
        self.node = self.disk = None
        self._enter(State.DOWN, what)

    def lose_power(self, severity: Severity) -> None:
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.kill()
        self.fabric.power_lost(self.name)
        self.node = self.disk = None
        entries, changes = self.volume.lose_power(self.random, severity)
        self._enter(State.OFF, f"loses power, and with it {entries} changes of directories and {changes} of files")

    def watch_disk(self, on_step: Callable[[str, str], None] | None) -> None:
        """Calls `on_step(kind, path)` before every change of the disk from now on. If `on_step` is None, ends the
        calls."""
        self._on_disk_step = on_step
        if self.disk is not None:
            self.disk.on_step = on_step

    def die_at_change(self, count: int, how: Callable[[], None]) -> None:
        """Counts the changes of the disk from now on, and kills the process in the middle of change `count`.

        Then calls `how`, which can inject a further fault, for example a power loss.
        """
        disk = self.disk
        if disk is None:
            return
        left = count

        def on_change(kind: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                disk.on_change = None
                self.trace.note(self.name, f"dies inside {kind} {path}")
                disk.loop.kill()
                timeline = self.fabric.timeline
                timeline.at(timeline.now, how)
                raise ProcessKilled

        disk.on_change = on_change

    def pause(self) -> None:
        if self.loop is not None:
            self.loop.stop()
            self._notify("is paused")

    def resume(self) -> None:
        if self.loop is not None and self.loop.stopped:
            self.loop.resume()
            self._notify("goes on")

    def heal(self) -> None:
        """Ends all faults of the machine; damaged files stay damaged."""
        self.conditions.heal()
        self.volume.free_bytes = None
        for path in list(self.unmounted):
            self.mount(path)
        self.disk_faults = 0
        if self.disk is not None:
            self.disk.on_change = None
        self.resume()

    def voter_directory(self) -> bytes | None:
        """Returns the id of the directory that holds the votes. The quorum recognises a new disk by its new id."""
        broker = self.broker
        return broker.metadata.voter.directory_id if broker is not None else None

    def wipe(self, *, votes_too: bool = False) -> None:
        """Replaces the disk by an empty disk. A voter's votes are on a separate disk, which is replaced only if
        `votes_too` is set."""
        self.unmounted.clear()
        if votes_too:
            self.joins = True
        if self.votes and not self.layout.single_node and not votes_too:
            for path in self.data_directories:
                if self.volume.find(path) is not None:
                    self.volume.remove_tree(path)
            self.volume.sync_all()
        else:
            self.volume = Volume(self.clock.wall_ms)
        self._notify("has a new, empty disk")

    def replace_directory(self, path: str) -> None:
        """Replaces the disk of one log directory by an empty disk; the machine has to be down."""
        self.unmounted.pop(path, None)
        if self.volume.find(path) is not None:
            self.volume.remove_tree(path)
        self.volume.sync_all()
        self._notify(f"has a new, empty disk for {path}")

    def unmount(self, path: str) -> None:
        """Unmounts the disk of one log directory; an empty directory stays as the mount point. The machine has to be
        down."""
        if path not in self.unmounted and self.volume.find(path) is not None:
            self.unmounted[path] = self.volume.detach(path)
            self._notify(f"has no disk at {path}")

    def mount(self, path: str) -> None:
        """Mounts the disk of a log directory again. Files that were written to the mount point meanwhile are hidden."""
        if (directory := self.unmounted.pop(path, None)) is not None:
            self.volume.attach(path, directory)
            self._notify(f"has its disk at {path} again")

    def _enter(self, state: State, what: str) -> None:
        self.state = state
        self._notify(what, state)

    def _notify(self, what: str, state: State | None = None) -> None:
        self.trace.note(self.name, what)
        self.on_event(self, what, state)
