"""Runs scenario scripts: commands to a simulated cluster, with their answers, in virtual time.

    > topic t penstock.acks.fsync=true
    created
    > produce t a b
    a@0 b@1
    > power everything
    > start
    n1 serves
    > read t
    a@0 b@1

A script that begins with `> nodes 3` has three machines, and commands about a machine name it: `> kill n2`. A script
that begins with `> directories /data,/more` has one machine with these log directories. With `> nodes 3
directories=/data,/more`, each of the three machines has these directories; other words `name=value` are settings of
all nodes. `scenario_text` has the grammar; each method `do_…` of `ScenarioRunner` is a command.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from penstock.client.admin import Admin, NewTopic
from penstock.client.client import AsyncClient
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.offsets import list_offsets
from penstock.client.producer import Producer, ProducerSettings
from penstock.disk.volume import Severity
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TRANSACTION_STATE,
    ConfigOperation,
    ResourceType,
    TopicPartition,
)
from penstock.records.batches import split_batches
from penstock.records.record import read_records
from penstock.sim.actors.session import Clients
from penstock.sim.checks.replica_rules import read_copy
from penstock.sim.engine.cluster_layout import simple_layout
from penstock.sim.engine.environment import Environment
from penstock.sim.engine.loop import ProcessLoop, run_in
from penstock.sim.engine.machine import DATA, Machine
from penstock.sim.faults.cluster_faults import isolated
from penstock.sim.faults.held_requests import HeldRequest
from penstock.sim.faults.voter_replacement import put_back
from penstock.sim.run.guard_commands import GuardCommands
from penstock.sim.run.move_commands import MoveCommands
from penstock.sim.run.record_commands import RecordCommands, shown
from penstock.sim.run.scenario_text import Line, answered, parse
from penstock.sim.run.share_commands import ShareCommands
from penstock.sim.run.streams_commands import StreamsCommands

BOUND_S = 100_000.0
READ_BOUND_S = 30.0
#: Prefixes of the settings of internal topics, which have one partition each.
INTERNAL_TOPICS = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def run_script(
    text: str, *, seed: int = 1, settings: dict[str, str] | None = None, includes: Mapping[str, str] | None = None
) -> str:
    """Runs the script. Returns its text with the answers that its commands got in this run."""
    lines = list(parse(text, includes))
    first = next((command.split() for line in lines for command in line.commands), [""])
    nodes = int(first[1]) if first[0] == "nodes" else 1
    own = dict(word.split("=", 1) for word in first[2:] if "=" in word)
    directories = first[1] if first[0] == "directories" else own.pop("directories", "")
    own |= {"log.dirs": directories} if directories else {}
    runner = ScenarioRunner(seed, {**(settings or {}), **own}, nodes)
    return runner.environment.run(runner.perform(lines), runner.loop, until=BOUND_S)


class Participant:
    """Holds a client process of the script, with a producer if it writes."""

    def __init__(self, clients: Clients, name: str, kind: str = "idempotent", transactional_id: str = "") -> None:
        self.name = name
        self.kind = kind
        self.transactional_id = transactional_id or name
        clients.environment.fabric.host(name)
        self.loop: ProcessLoop = clients.environment.timeline.process(name)
        self.session = clients.session(name, name, self.loop)
        self.client: AsyncClient | None = None
        self.producer: Producer | None = None
        self.pending: asyncio.Future[str] | None = None

    async def connected(self) -> AsyncClient:
        if self.client is None:
            self.client = self.session.client()
        return self.client

    async def producing(self) -> Producer:
        if self.producer is None:
            settings = ProducerSettings(
                idempotent=self.kind != "plain",
                delivery_timeout_s=60.0,
                transactional_id=self.transactional_id if self.kind == "transactional" else None,
                transaction_timeout_ms=10_000,
            )
            self.producer = Producer(await self.connected(), self.session.clock, settings)
            if self.kind == "transactional":
                await self.producer.start()
        return self.producer


class ScenarioRunner:
    def __init__(self, seed: int, settings: dict[str, str], nodes: int = 1) -> None:
        own = {f"{topic}.num.partitions": "1" for topic in INTERNAL_TOPICS} | settings
        self.environment = Environment(seed, simple_layout(nodes), own)
        self.clients = Clients(self.environment)
        self.timeline = self.environment.timeline
        self.fabric = self.environment.fabric
        self.machines = self.environment.machines
        self.loop = self.timeline.process("stage")
        self.roles: dict[str, Participant] = {}
        self.warnings: list[str] = []
        self._commands: dict[str, Callable[..., Awaitable[str]]] = {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }
        self._commands |= HeldRequest(self.fabric).commands | MoveCommands(self.environment, _partition).commands
        self._commands |= ShareCommands(self._as).commands | RecordCommands(self._as, _partition).commands
        self._commands |= StreamsCommands(self._as).commands
        self._guard = GuardCommands(self.environment, self._as, _partition)
        self._commands |= self._guard.commands

    async def perform(self, lines: Sequence[Line]) -> str:
        logger = logging.getLogger("penstock")
        handler = _WarningCollector(self)
        before = (logger.level, logger.propagate)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        logger.addHandler(handler)
        try:
            with self._guard.lies.installed():
                await self.environment.power_on()
                return await self._perform(lines)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]

    async def _perform(self, lines: Sequence[Line]) -> str:
        found: list[str] = []
        for line in lines:
            found.append(line.text)
            for command in line.commands:
                answered(found, line, await self._do(command))
        return "\n".join(found) + "\n"

    async def _do(self, line: str) -> str:
        words = [word for word in shlex.split(line) if "=" not in word]
        options = dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)
        command = self._commands.get(words[0])
        if command is None:
            return f"no command {words[0]}"
        try:
            return await command(*words[1:], **options)
        except KafkaError as error:
            return f"error {error.code.name}"
        except TimeoutError:
            return "no answer"

    def role(self, name: str) -> Participant:
        if name not in self.roles:
            self.roles[name] = Participant(self.clients, name)
        return self.roles[name]

    async def _as(self, name: str, work: Callable[[Participant], Awaitable[str]]) -> str:
        role = self.role(name)

        async def do() -> str:
            return await work(role)

        return await run_in(role.loop, do())

    # Topics, records, transactions and offsets.

    async def do_topic(self, name: str, partitions: str = "1", replicas: str = "", **configs: str) -> str:
        """Creates a topic. `replicas=2,1,3` sets the replicas of its only partition; the first replica is the preferred
        leader."""
        wanted = [[int(each) for each in replicas.split(",")]] if replicas else []
        factor = self.machines[0].layout.replication_factor

        async def work(role: Participant) -> str:
            topic = NewTopic(name, int(partitions), factor, assignments=wanted, configs=configs)
            await Admin(await role.connected()).create_topics([topic])
            return "created"

        return await self._as("admin", work)

    async def do_delete_topic(self, name: str) -> str:
        async def work(role: Participant) -> str:
            await Admin(await role.connected()).delete_topics([name])
            return "deleted"

        return await self._as("admin", work)

    async def do_config(self, name: str, **configs: str) -> str:
        """Changes a topic's configs."""

        async def work(role: Participant) -> str:
            changes = [(config, ConfigOperation.SET, value) for config, value in configs.items()]
            await Admin(await role.connected()).alter_configs(ResourceType.TOPIC, name, changes)
            return "changed"

        return await self._as("admin", work)

    async def do_producer(self, name: str, kind: str, id: str = "") -> str:
        self.roles[name] = Participant(self.clients, name, kind, id)
        return ""

    async def do_produce(self, place: str, *values: str, by: str = "p") -> str:
        topic, partition = _partition(place)

        async def work(role: Participant) -> str:
            producer = await role.producing()
            sent = [await producer.send(topic, value.encode(), partition=partition) for value in values]
            try:
                await producer.flush()
            except KafkaError as error:
                return f"error {error.code.name}"
            offsets = [(await each).offset for each in sent]
            return " ".join(f"{value}@{offset}" for value, offset in zip(values, offsets))

        return await self._as(by, work)

    async def do_later(self, *words: str, by: str = "p") -> str:
        """Begins a command without waiting for its answer; the command `finish` waits for it."""
        role = self.role(by)
        line = shlex.join(words) + f" by={by}"
        role.pending = asyncio.ensure_future(self._do(line))
        return ""

    async def do_finish(self, name: str = "p") -> str:
        pending, self.role(name).pending = self.role(name).pending, None
        return "no command was begun" if pending is None else await pending

    async def do_read(self, place: str, what: str = "all", by: str = "reader") -> str:
        partition = _partition(place)
        level = READ_COMMITTED if what == "committed" else READ_UNCOMMITTED

        async def work(role: Participant) -> str:
            client = await role.connected()
            start = (await list_offsets(client, {partition: EARLIEST}))[partition].offset
            stop = (await list_offsets(client, {partition: LATEST}, isolation_level=level))[partition].offset
            found = []
            settings = ConsumerSettings(isolation_level=level, max_wait_ms=100)
            async with asyncio.timeout(READ_BOUND_S), Consumer(client, settings) as consumer:
                await consumer.assign({partition: start})
                while consumer.position(partition) < stop:
                    for part in await consumer.poll(1.0):
                        found += [shown(each.value, each.offset) for each in part.records()]
            return " ".join(found) or "(nothing)"

        return await self._as(by, work)

    async def do_end(self, place: str, what: str = "all") -> str:
        partition = _partition(place)
        level = READ_COMMITTED if what == "committed" else READ_UNCOMMITTED

        async def work(role: Participant) -> str:
            found = await list_offsets(await role.connected(), {partition: LATEST}, isolation_level=level)
            return str(found[partition].offset)

        return await self._as("reader", work)

    async def do_begin(self, name: str) -> str:
        async def work(role: Participant) -> str:
            (await role.producing()).begin()
            return ""

        return await self._as(name, work)

    async def do_commit(self, name: str = "p", by: str = "") -> str:
        return await self._end(by or name, commit=True)

    async def do_abort(self, name: str = "p", by: str = "") -> str:
        return await self._end(by or name, commit=False)

    async def _end(self, name: str, *, commit: bool) -> str:
        async def work(role: Participant) -> str:
            producer = await role.producing()
            await (producer.commit() if commit else producer.abort())
            return "committed" if commit else "aborted"

        return await self._as(name, work)

    async def do_commit_offset(self, group: str, place: str, offset: str) -> str:
        async def work(role: Participant) -> str:
            done = await role.session.commit(await role.connected(), group, {_partition(place): int(offset)})
            return "committed" if done else "refused"

        return await self._as("member", work)

    async def do_offset(self, group: str, place: str) -> str:
        async def work(role: Participant) -> str:
            found = await role.session.committed(await role.connected(), group, [_partition(place)])
            return str(found[_partition(place)])

        return await self._as("member", work)

    # Machines, links, disks and time.

    def _machine(self, name: str) -> Machine:
        return self.environment.machine(name)

    async def do_nodes(self, count: str, **settings: str) -> str:
        """Sets the number of machines and settings of all nodes; allowed only as the first command. All machines start
        before the script begins."""
        return ""

    async def do_kill(self, *names: str) -> str:
        for name in names or ("n1",):
            self._machine(name).kill()
        return ""

    async def do_stop(self, name: str = "n1") -> str:
        return f"{name} has stopped" if await self._machine(name).stop() else f"{name} could not stop"

    async def do_start(self, *names: str) -> str:
        chosen = names or ("n1",)
        started = await asyncio.gather(*(self._machine(name).start() for name in chosen))
        return "\n".join(f"{name} {'serves' if done else 'could not start'}" for name, done in zip(chosen, started))

    async def do_power(self, what: str = "everything", name: str = "n1") -> str:
        """Powers a machine off. The machine loses all unsynced data (`everything`) or no data (`nothing`)."""
        self._machine(name).lose_power(Severity.EVERYTHING if what == "everything" else Severity.NOTHING)
        return ""

    async def do_wipe(self, name: str, what: str = "records") -> str:
        """Replaces the disk of a machine that is down; with `votes`, also the separate disk that holds its votes."""
        self._machine(name).wipe(votes_too=what == "votes")
        return ""

    async def do_die_in_change(self, count: str, what: str = "kill", name: str = "n1") -> str:
        machine = self._machine(name)
        how = machine.kill if what == "kill" else lambda: machine.lose_power(Severity.EVERYTHING)
        machine.die_at_change(int(count), how)
        return ""

    async def do_pause(self, name: str = "n1") -> str:
        self._machine(name).pause()
        return ""

    async def do_resume(self, name: str = "n1") -> str:
        self._machine(name).resume()
        return ""

    async def do_cut(self, source: str, target: str) -> str:
        self.fabric.link(source, target).cut = True
        return ""

    async def do_mend_one(self, source: str, target: str) -> str:
        self.fabric.link(source, target).mend()
        return ""

    async def do_mend(self) -> str:
        self.fabric.mend_all()
        return ""

    async def do_wait(self, seconds: str) -> str:
        await asyncio.sleep(float(seconds))
        return ""

    async def do_files(self, place: str) -> str:
        topic, partition = _partition(place)
        found = self.machines[0].volume.files(f"{DATA}/{topic}-{partition}")
        return "\n".join(sorted(f"{path.rpartition('/')[2]} {len(inode.data)}" for path, inode in found))

    async def do_flip(self, place: str, name: str, byte: str) -> str:
        topic, partition = _partition(place)
        self.machines[0].volume.inode(f"{DATA}/{topic}-{partition}/{name}").data[int(byte)] ^= 1
        return ""

    async def do_append_zeros(self, place: str, name: str, count: str) -> str:
        topic, partition = _partition(place)
        inode = self.machines[0].volume.inode(f"{DATA}/{topic}-{partition}/{name}")
        inode.data.extend(bytes(int(count)))
        return ""

    async def do_log(self) -> str:
        """Shows the warnings that nodes have logged since the last `log` command."""
        warnings, self.warnings = self.warnings, []
        return "\n".join(warnings)

    # Clusters.

    async def do_isolate(self, name: str, direction: str = "both") -> str:
        """Cuts a machine off from the other machines; clients still reach it."""
        for pair in isolated(name, self.environment.names, direction):
            self.fabric.link(*pair).cut = True
        return ""

    async def do_leader(self, place: str) -> str:
        """Shows the leader of a partition in the newest metadata of any machine."""
        topic, index = _partition(place)
        image = self.environment.newest_image
        found = image.partition(topic, index) if image is not None else None
        if found is None:
            return "no such partition"
        leader = "nobody" if found.leader < 0 else f"n{found.leader}"
        said = f"{leader} in epoch {found.leader_epoch}, in sync {_ids(found.isr)}"
        return said + (f", eligible {_ids(found.elr)}" if found.elr else "")

    async def do_has(self, name: str, place: str) -> str:
        """Shows the records in a machine's replica of a partition, and the replica's high watermark."""
        topic, index = _partition(place)
        broker = self._machine(name).broker
        if broker is None:
            return "not running"
        try:
            log = broker.partitions.get(topic, index).log
            batches = read_copy(name, log).batches.values()
        except KafkaError as error:
            return f"error {error.code.name}"
        found = [
            shown(record.value, record.offset) if not header.is_control else f"marker@{record.offset}"
            for header, view in (pair for batch in batches for pair in split_batches(batch))
            for record in read_records(view)
        ]
        return f"{' '.join(found) or '(nothing)'}, committed to {log.high_watermark}"

    def _leads(self, topic: str, index: int = 0) -> Machine:
        image = self.environment.newest_image
        found = image.partition(topic, index) if image is not None else None
        return self._machine(f"n{found.leader if found is not None else 1}")

    async def do_controller(self) -> str:
        """Shows the node that most running machines regard as the leader of the quorum."""
        brokers = [machine.broker for machine in self.machines if machine.serving]
        leaders = [broker.metadata.quorum().leader_id for broker in brokers if broker is not None]
        return f"n{max(leaders, key=leaders.count)}" if leaders else "nobody"

    async def do_voters(self) -> str:
        """Shows the voters that the cluster reports. `?` marks a voter whose directory id differs from the id on its
        machine's disk."""

        async def work(role: Participant) -> str:
            part = (await ClusterAdmin(await role.connected()).describe_quorum()).topics[0].partitions[0]
            named = []
            for voter in sorted(part.current_voters, key=lambda each: each.replica_id):
                known = self._machine(f"n{voter.replica_id}").voter_directory() == voter.replica_directory_id
                named.append(f"n{voter.replica_id}" + ("" if known else "?"))
            return " ".join(named)

        return await self._as("admin", work)

    async def do_put_back(self, name: str) -> str:
        """Removes the voter of the old disk and adds the voter of the new disk, as an operator does."""

        async def work(role: Participant) -> str:
            await put_back(role.session, self._machine(name))
            return f"{name} votes"

        return await self._as("admin", work)

    async def do_refuse(self, name: str, api: str) -> str:
        """Makes a node close every connection on which it gets a request of this API."""
        broker = self._machine(name).broker
        assert broker is not None
        broker.faults.add(api=api, close=True)
        return ""

    async def do_refuse_nothing(self, name: str) -> str:
        broker = self._machine(name).broker
        assert broker is not None
        broker.faults.clear()
        return ""

    async def do_kill_coordinator(self) -> str:
        self._leads(TRANSACTION_STATE).kill()
        return ""

    async def do_in_sync(self, place: str, within: str = "60") -> str:
        """Waits until every replica of the partition is in the ISR."""
        topic, index = _partition(place)
        async with asyncio.timeout(float(within)):
            while True:
                image = self.environment.newest_image
                found = image.partition(topic, index) if image is not None else None
                if found is not None and found.leader >= 0 and {*found.isr} == {*found.replicas}:
                    return await self.do_leader(place)
                await asyncio.sleep(0.1)


def _ids(ids: Sequence[int]) -> str:
    return " ".join(f"n{each}" for each in sorted(ids)) or "nobody"


def _partition(place: str) -> TopicPartition:
    topic, dash, partition = place.rpartition("-")
    return (topic, int(partition)) if dash and partition.isdecimal() else (place, 0)


class _WarningCollector(logging.Handler):
    def __init__(self, runner: ScenarioRunner) -> None:
        super().__init__(logging.WARNING)
        self._runner = runner
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        running: Any = self._runner.timeline.running
        # a real broker may run in another thread
        if running is not None and not running.dead and record.thread == self._thread:
            self._runner.warnings.append(f"{record.levelname.lower()}: {record.getMessage()}")
