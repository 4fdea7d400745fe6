"""Runs a plan: machines, actors and faults, from power on to the verdict.

    start ──► topics ──► actors and faults ──► heal everything ──► actors finish ──► read all records ──► clean restart,
    read all records again ──► check all rules

The simulation itself runs in a process that no fault hits.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.client.admin import Admin, NewTopic
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.actors.actor import Actor
from penstock.sim.actors.final_reader import read_everything
from penstock.sim.actors.session import Clients
from penstock.sim.checks.applied_metadata import metadata_is_applied
from penstock.sim.checks.committed_answers import CommittedAnswers
from penstock.sim.checks.confirmed_share_states import ConfirmedShareStates
from penstock.sim.checks.directory_rules import DirectoryRules
from penstock.sim.checks.durability_claims import DurabilityClaims
from penstock.sim.checks.group_ownership import GroupOwnership
from penstock.sim.checks.history import FinalView, History, UncleanElection
from penstock.sim.checks.history_rules import judge
from penstock.sim.checks.published_metadata import PublishedMetadata
from penstock.sim.checks.quorum_logs import QuorumLogs
from penstock.sim.checks.rebuilt_state import RebuiltStates
from penstock.sim.checks.recreation_rules import compacted_parts_are_compact
from penstock.sim.checks.reloaded_coordinators import ReloadedCoordinators
from penstock.sim.checks.replica_contents import ReplicaContents
from penstock.sim.checks.replica_rules import (
    aborted_transactions_are_indexed,
    epochs_fit,
    indexes_fit,
    not_committed,
    replica_starts,
    replicas_agree,
    transactions_end_once,
)
from penstock.sim.checks.restart_rules import changes_by_restart
from penstock.sim.checks.share_states import ShareStates
from penstock.sim.checks.story import Story, StoryLine, Violation
from penstock.sim.checks.taps import Tap, tapped
from penstock.sim.checks.watcher import Excuses, Watcher
from penstock.sim.engine.environment import Environment
from penstock.sim.engine.loop import SimulationError, run_in
from penstock.sim.engine.machine import Machine, State
from penstock.sim.engine.node_code import other_version, this_version
from penstock.sim.engine.watchdog import EndlessTurnError, watched
from penstock.sim.faults.lost_machines import LostMachines
from penstock.sim.faults.nemesis import Nemesis
from penstock.sim.faults.point_counter import PointCounter
from penstock.sim.faults.supervisor import Supervisor
from penstock.sim.faults.target import FaultTarget
from penstock.sim.faults.upgrades import RollingUpgrade
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.points import PointLog
from penstock.sim.run.first_epochs import first_epoch

#: Virtual seconds for each phase: a cluster that takes longer is not alive.
START_BOUND_S = 60.0
FINISH_BOUND_S = 90.0
VERIFY_BOUND_S = 180.0
#: Additional seconds for each partition beyond the first few, which the final reader reads one after the other.
VERIFY_PARTITION_S = 2.0
FEW_PARTITIONS = 20
CONVERGE_BOUND_S = 90.0
POLL_S = 0.2
#: How often the machines of a cluster are checked against each other.
WATCH_S = 0.25


@dataclass(slots=True)
class Verdict:
    plan: Plan
    violations: list[Violation]
    story: list[StoryLine]
    digest: str
    virtual_s: float
    counts: dict[str, int]
    history: History
    trace: list[str] = field(default_factory=list)
    watcher: Watcher | None = None
    points: PointLog = field(default_factory=PointLog)
    """Points that the run passed, if they were recorded, and the faults that happened at points."""

    @property
    def ok(self) -> bool:
        return not self.violations


class Simulation:
    def __init__(self, plan: Plan, *, keep_trace: bool = False, record_points: bool = False) -> None:
        self.plan = plan
        self.environment = Environment(
            plan.seed,
            plan.layout,
            plan.settings,
            keep_trace=keep_trace,
            network=plan.network,
            split=plan.split,
            turn_cost_s=plan.turn_cost_s,
            clock_error=plan.clock,
        )
        self.timeline = self.environment.timeline
        self.machines = self.environment.machines
        self.clients = Clients(self.environment)
        self.history = self.clients.history
        self.story = Story(self.timeline, self.environment.trace)
        self.loop = self.timeline.process("world")
        self.supervisor = Supervisor(self.timeline, self.machines)
        self.watcher = Watcher(self.machines, lambda: self.timeline.now, self.story.add, self.story.violated)
        self.quorum_logs = QuorumLogs(self.machines, self.story.violated)
        self.published = PublishedMetadata(self.machines, self.story.violated)
        self.answers = CommittedAnswers(self.story.violated)
        self.reloaded = ReloadedCoordinators(
            self.machines, lambda: self.timeline.now, self.story.violated, self.history.damaged
        )
        self.losses = LostMachines(plan, self.machines, self.history.damaged)
        self.contents = ReplicaContents(
            self.machines,
            lambda: self.timeline.now,
            self.story.violated,
            damaged=self.history.damaged,
            lost=lambda: self.losses.open().keys(),
            promised=plan.fsync,
            compacted={topic.name for topic in plan.topics if topic.compacted},
        )
        self.history.commit_time = self.contents.commit_time
        self.contents.on_unclean = self._elected_unclean
        self.rebuilt = RebuiltStates(self.machines, self.story.violated, self.history.damaged)
        self.durability = DurabilityClaims(self.machines, self.story.violated)
        self.share_states = ShareStates(self.machines, self.history, self.story.violated)
        self.confirmed_shares = ConfirmedShareStates(self.machines, self.story.violated, excused=self._journals_lost)
        self.ownership = GroupOwnership(
            self.machines, lambda: self.timeline.now, self.story.violated, excused=self._journals_lost
        )
        #: Virtual seconds in which a machine had lost data and was not back in sync.
        self._excused_s = 0.0
        self.watcher.excuses = self._excuses
        self.watcher.min_insync = plan.layout.min_insync
        self.actors = [Actor(self.clients, actor) for actor in plan.actors]
        self.target = FaultTarget(
            plan,
            self.environment,
            self.clients,
            self.actors,
            self.story,
            self.watcher,
            self.quorum_logs,
            self.losses,
            self.supervisor,
        )
        self.directories = DirectoryRules(
            self.machines, self.environment.fabric, lambda: self.target.controller, self.story.violated
        )
        #: The version that the machines run at first; None: this version.
        self._other = other_version(plan.other_version) if plan.other_version else None
        if self._other is not None:
            for machine in self.machines:
                machine.code = self._other
        self.points = PointCounter(self.target, self.loop, record=record_points)
        self.counts_points = record_points or bool(plan.points)
        for machine in self.machines:
            self._observe(machine)

    def _observe(self, machine: Machine) -> None:
        machine.on_event = self._machine_event
        machine.on_failure = self._start_failed
        machine.on_node_event = lambda which, event: self.watcher.node_event(which.name, event)
        machine.on_serving = self._serves

    def _serves(self, machine: Machine) -> None:
        self.directories.serves(machine)
        self.published.serves(machine)
        if not self.plan.layout.single_node:
            self.watcher.serves(machine)

    def _machine_event(self, machine: Machine, what: str, state: State | None) -> None:
        self.story.add_state(machine.name, what, state)
        losses = self.history.power_losses
        if state is State.OFF and losses and losses[-1] == self.timeline.now:
            self.history.losses += self.contents.power_lost(machine)
        self.supervisor.state_changed(machine)

    def _elected_unclean(self, key: tuple[bytes, int], partition: TopicPartition, first: int) -> None:
        self.watcher.elected_unclean(key, first)
        self.history.unclean.append(UncleanElection(partition, self.timeline.now, first))
        self.story.add("leaders", f"{partition[0]}-{partition[1]} lost what was committed from {first} on, uncleanly")

    def _start_failed(self, machine: Machine, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.story.violated("starts and stops", f"{machine!r}: {error!r} in {where.filename}:{where.lineno}")

    @property
    def _reading_bound_s(self) -> float:
        partitions = sum(topic.partitions for topic in self.plan.topics)
        return VERIFY_BOUND_S + VERIFY_PARTITION_S * max(0, partitions - FEW_PARTITIONS)

    # The phases of a run.

    def run(self) -> Verdict:
        view: FinalView | None = None
        bound = self.plan.duration_s + START_BOUND_S + FINISH_BOUND_S + 3 * self._reading_bound_s
        with self._logs_captured(), tapped(self._taps()), self.environment.running():
            try:
                with watched(self.timeline), first_epoch(self.plan.first_producer_epoch):
                    view = self.timeline.run(self._run(), self.loop, until=bound)
            except (SimulationError, EndlessTurnError) as error:
                self.story.violated("liveness", str(error))
            except Exception as error:
                self.story.violated("no exceptions", "".join(traceback.format_exception(error)[-6:]))
            finally:
                self._end()
        if view is not None:
            self.story.violations += judge(self.plan, self.history, view)
        return self._verdict()

    def _taps(self) -> list[Tap]:
        checks = (
            *(self.contents, self.ownership, self.rebuilt, self.durability),
            *(self.share_states, self.confirmed_shares, self.directories),
            *(self.published, self.answers),
        )
        taps = [tap for check in checks for tap in check.taps()]
        if self._other is not None:
            twins = [(tap, self._other.twin(tap.owner)) for tap in self.contents.taps()]
            taps += [tap._replace(owner=twin) for tap, twin in twins if twin is not None]
        return taps

    def _end(self) -> None:
        # A task whose exception was never retrieved reports it when it is collected, but not once its process is dead.
        gc.collect()
        self.timeline.end()
        for failure in self.timeline.failures:
            where = "".join(traceback.format_exception(failure.error)[-4:]) if failure.error else ""
            self.story.violated("no exceptions", f"{failure}\n{where}")

    async def _run(self) -> FinalView | None:
        if not all(await self.environment.power_on()):
            return None
        await self._bounded("creating the topics", START_BOUND_S, self._create_topics())
        supervisors = self.begin_supervision()
        acting = [asyncio.ensure_future(actor.run()) for actor in self.actors]
        faults = self.begin_faults()
        await asyncio.sleep(self.plan.duration_s)
        await self.heal(faults)
        await self._finish(acting)
        view = await self._verify()
        for task in supervisors:
            if task.done():
                task.result()  # raises what ended it: without it the rest of the run was not checked
            task.cancel()
        return view

    def begin_supervision(self) -> list[asyncio.Task[None]]:
        """Begins to restart machines that are down and to compare the machines. Returns the tasks that do this work."""
        self.target.began = self.timeline.now
        supervisors = [asyncio.ensure_future(self.supervisor.supervise(machine)) for machine in self.machines]
        if not self.plan.layout.single_node:
            supervisors.append(asyncio.ensure_future(self._watch()))
        return supervisors

    def begin_faults(self) -> list[asyncio.Task[None]]:
        if self.counts_points:
            self.points.begin()
        nemesis = Nemesis(self.target)
        faults = [asyncio.ensure_future(nemesis.run(fault)) for fault in self.plan.faults]
        if self._other is not None:
            faults.append(asyncio.ensure_future(RollingUpgrade(self.target, this_version()).run()))
        return faults

    async def _watch(self) -> None:
        while True:
            excuses = self._excuses()
            self._excused_s += WATCH_S if excuses.lost else 0.0
            self.watcher.look(excuses)
            self.quorum_logs.look()
            self.published.look()
            self.reloaded.look()
            self.ownership.look()
            self.directories.look()
            await asyncio.sleep(WATCH_S)

    def _excuses(self) -> Excuses:
        return Excuses(list(self.losses.open()), self._excused_partitions())

    def _journals_lost(self) -> bool:
        """Returns True if a power loss may have erased unsynced records of coordinators."""
        return bool(self.history.power_losses) and not self.plan.fsync_everywhere

    def _excused_partitions(self) -> set[TopicPartition]:
        return self.history.damaged | {loss.partition for loss in self.history.losses}

    async def _create_topics(self) -> None:
        factor = self.plan.layout.replication_factor
        wanted = [NewTopic(each.name, each.partitions, factor, configs=each.configs) for each in self.plan.topics]
        loop = self.timeline.process("setup")
        session = self.clients.session("setup", "setup", loop)

        async def create() -> None:
            async with session.client() as client:
                await Admin(client).create_topics(wanted)

        await run_in(loop, create())

    async def heal(self, faults: list[asyncio.Task[None]]) -> None:
        for fault in faults:
            fault.cancel()
        for outcome in await asyncio.gather(*faults, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        if self.counts_points:
            self.points.end()
        self.story.add("world", "heals everything")
        self.environment.fabric.mend_all()
        self.target.finish_upgrade(this_version())
        for machine in self.machines:
            starts_with_fault = machine.state is State.STARTING and machine.disk_faults > 0
            machine.heal()
            running = machine.state in (State.STARTING, State.SERVING)
            if starts_with_fault or (running and machine.offline):
                machine.kill()  # a directory stays offline until the next start
            self.supervisor.restart_now(machine)

    async def _finish(self, acting: list[asyncio.Task[None]]) -> None:
        self.clients.stopping = True
        if not acting:
            return
        _, pending = await asyncio.wait(acting, timeout=FINISH_BOUND_S)
        if pending:
            names = [actor.name for actor, task in zip(self.actors, acting) if task in pending]
            what = f"{', '.join(names)} did not finish within {FINISH_BOUND_S:.0f} s of healing"
            self.story.violated("liveness", what)
        for actor, task in zip(self.actors, acting):
            if task.done() and (error := task.exception()) is not None:
                where = "".join(traceback.format_exception(error)[-5:])
                self.story.violated("no exceptions", f"{actor.name}: {error!r}\n{where}")
            elif not task.done():
                actor.kill()
                task.cancel()

    async def _verify(self) -> FinalView | None:
        """Reads all records, restarts all nodes cleanly, reads all records again, and compares both readings."""
        if not self.plan.layout.single_node:
            await self._bounded("the work of operators", CONVERGE_BOUND_S, _all(self.supervisor.operations))
            await self._bounded("coming back into sync", CONVERGE_BOUND_S, self._converge())
            self.history.one_leader_since = dict(self.watcher.one_leader_since)
        first = await self._bounded("reading everything", self._reading_bound_s, self._read("verify1"))
        if first is None:
            return None
        starts = replica_starts(self.machines)
        self._compare_memory()
        self.share_states.nothing_is_held()
        self.confirmed_shares.compare_all()
        # Before the restart, which may rebuild wrong indexes.
        first.problems += indexes_fit(self.machines, self.history.damaged)
        first.problems += epochs_fit(self.machines, self.history.damaged)
        first.problems += aborted_transactions_are_indexed(self.machines, self.history.damaged)
        first.problems += compacted_parts_are_compact(self.machines, self.history.damaged)
        for machine in self.machines:
            await self._bounded(f"stopping {machine.name}", START_BOUND_S, machine.stop())
            if not self.plan.layout.single_node:
                what = f"coming back into sync after a restart of {machine.name}"
                await self._bounded(what, CONVERGE_BOUND_S, self._converge())
        again = await self._bounded("reading everything again", self._reading_bound_s, self._read("verify2"))
        if again is not None:
            self._compare_memory()
            again.problems += first.problems
            changing = {topic.name for topic in self.plan.topics if topic.compacted}
            shrinking = {topic.name for topic in self.plan.topics if topic.shrinks}
            again.problems += changes_by_restart(first, again, starts, self.history, shrinking)
            again.problems += indexes_fit(self.machines, self.history.damaged)
            again.problems += aborted_transactions_are_indexed(self.machines, self.history.damaged)
            # A coordinator that lost its log in a power cut may give out an epoch twice.
            if not self._journals_lost():
                again.problems += transactions_end_once(self.machines, self.history.damaged)
            if not self.plan.layout.single_node:
                # A coordinator may have written since, for example because the session of a member has expired.
                await self._bounded("coming back into sync after the last read", CONVERGE_BOUND_S, self._converge())
                again.problems += replicas_agree(self.machines, changing, self.history.damaged)
        return again if isinstance(again, FinalView) else None

    def _compare_memory(self) -> None:
        """Compares what the nodes of a healed cluster have in memory with their logs, and with each other."""
        self.rebuilt.compare_all()
        self.reloaded.compare_all()
        self.published.compare_healed()
        metadata_is_applied(self.machines, self.story.violated)

    async def _converge(self) -> None:
        """Waits until all machines serve the newest metadata and every partition has all its replicas in sync."""
        while self._not_converged():  # noqa: ASYNC110 - nodes don't know that they are watched
            await asyncio.sleep(POLL_S)

    def _not_converged(self) -> str:
        """Returns the reason why the cluster has not converged yet; an empty string if it has converged."""
        image = self.environment.newest_image
        for machine in self.machines:
            if image is None or not machine.serving:
                return f"{machine.name} doesn't serve"
            known = machine.image
            if known is None or known.offset < image.offset:
                return f"{machine.name} doesn't know the newest metadata"
            broker = image.brokers.get(machine.node_id)
            if machine.holds_partitions and (broker is None or broker.fenced or broker.in_controlled_shutdown):
                return f"{machine.name} is fenced"
        assert image is not None
        for topic in image.topics.values():
            for index, part in topic.partitions.items():
                if (topic.name, index) in self.history.damaged:
                    continue
                if part.leader < 0 or {*part.isr} != {*part.replicas} or part.adding_replicas or part.removing_replicas:
                    return f"{topic.name}-{index} is {part}"
        names = {machine.name for machine in self.machines}
        for machine in self.machines:
            if not self.environment.fabric.heard_out(machine.name, names):
                return f"{machine.name} has not received everything that clients sent"
            if problem := not_committed(machine, self.history.damaged):
                return problem
        return ""

    async def _read(self, name: str) -> FinalView:
        loop = self.timeline.process(name)
        while not all(machine.serving for machine in self.machines):  # noqa: ASYNC110 - a supervisor starts them
            await asyncio.sleep(POLL_S)
        session = self.clients.session(name, name, loop)
        return await run_in(loop, read_everything(session, self.plan, self.history))

    async def _bounded(self, what: str, seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
        """Returns the result of `work`. If the work fails or takes too long, reports a violation and returns None."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            missing = "" if self.plan.layout.single_node else f": {self._not_converged()}"
            self.story.violated("liveness", f"{what} took more than {seconds:.0f} s{missing}")
        except KafkaError as error:
            self.story.violated("liveness", f"{what} failed: {error.code.name} {error.message}")
        return None

    # Log lines of the nodes.

    @contextmanager
    def _logs_captured(self) -> Iterator[None]:
        handler = _LogHandler(self)
        logger = logging.getLogger("penstock")
        before, propagate = logger.level, logger.propagate
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)
        others = [each for each in logger.handlers if each is not handler]
        for each in others:
            logger.removeHandler(each)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            for each in others:
                logger.addHandler(each)
            logger.setLevel(before)
            logger.propagate = propagate

    def _verdict(self) -> Verdict:
        history = self.history
        counts = {
            "machine starts": sum(machine.incarnation for machine in self.machines),
            "power losses": len(history.power_losses) + history.covered_losses,
            "writes": len(history.writes),
            "transactions": len(history.transactions),
            "reads": len(history.reads),
            "commits": len(history.commits),
            "turns": self.timeline.turns,
            "excused records": self.contents.records_excused,
            "excused partitions": len(self._excused_partitions()),
            "excused seconds": round(self._excused_s),
        }
        return Verdict(
            self.plan,
            self.story.violations,
            self.story.lines,
            self.environment.trace.digest,
            self.timeline.now,
            counts,
            history,
            self.environment.trace.lines,
            None if self.plan.layout.single_node else self.watcher,
            self.points.log,
        )


class _LogHandler(logging.Handler):
    """Copies log lines into the trace. A logged exception counts as a bug, even if the node survived it."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.INFO)
        self._simulation = simulation
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        simulation = self._simulation
        running = simulation.timeline.running
        if running is None or running.dead or record.thread != self._thread:  # a real broker may run in another thread
            return
        message = record.getMessage()
        simulation.environment.trace.note(running.name, f"log {record.levelname} {message}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR and not _excused(error):
            where = "".join(traceback.format_exception(error)[-4:])
            simulation.story.violated("no exceptions", f"{running.name} logs: {message}: {error!r}\n{where}")


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


def _excused(error: BaseException) -> bool:
    """Returns True if an injected disk fault explains the error."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR


def run_plan(plan: Plan, *, keep_trace: bool = False, record_points: bool = False) -> Verdict:
    return Simulation(plan, keep_trace=keep_trace, record_points=record_points).run()
