"""One run: machines, actors and faults of a plan, from power on to the last look at everything.

    start ──► topics ──► actors and faults ──► heal everything ──► actors finish ──► read all of it ──► clean restart,
    read all of it again ──► judge

The world itself is a process that no fault touches; it starts machines again after their faults and tells the story.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import traceback
from collections.abc import Coroutine
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.client.admin import Admin, NewTopic
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.sim.actors.actor import Actor
from penstock.sim.actors.session import Session
from penstock.sim.checks.final_read import changes, read_everything
from penstock.sim.checks.history import FinalView, History
from penstock.sim.checks.history_rules import Violation, judge
from penstock.sim.checks.quorum_logs import QuorumLogs
from penstock.sim.checks.replica_rules import (
    aborted_transactions_are_indexed,
    indexes_fit,
    not_committed,
    replica_starts,
    replicas_agree,
    transactions_end_once,
)
from penstock.sim.checks.watcher import Excuses, Watcher
from penstock.sim.engine.clock import SimClock
from penstock.sim.engine.disk import DiskConditions
from penstock.sim.engine.loop import ProcessLoop, SimulationError, Timeline, collected_by_hand, run_in
from penstock.sim.engine.machine import Machine, State
from penstock.sim.engine.network import Fabric, SimNetwork
from penstock.sim.engine.trace import Trace
from penstock.sim.faults.lost_machines import POWER, Losses, newest_image
from penstock.sim.faults.nemesis import Nemesis
from penstock.sim.run.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sim.engine.platter import Severity

#: Virtual seconds for each: more, and the cluster isn't alive.
START_BOUND_S = 60.0
FINISH_BOUND_S = 90.0
VERIFY_BOUND_S = 180.0
CONVERGE_BOUND_S = 90.0
SUPERVISE_S = 0.2
#: How often the machines of a cluster are held against each other.
WATCH_S = 0.25
#: A node whose start failed is started again this often.
RETRY_START_S = 2.0
#: Lives of a machine between two collections of garbage.
COLLECT_EVERY = 10


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the story."""

    time: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.time:9.3f} s  {self.who:<9} {self.what}"


@dataclass(slots=True)
class Verdict:
    plan: Plan
    violations: list[Violation]
    story: list[Event]
    digest: str
    virtual_s: float
    counts: dict[str, int]
    history: History
    trace: list[str] = field(default_factory=list)
    watcher: Watcher | None = None

    @property
    def ok(self) -> bool:
        return not self.violations


class World:
    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.timeline = Timeline(Random(f"{plan.seed}/order"))  # noqa: S311
        self.trace = Trace(self.timeline, keep=keep_trace)
        self.fabric = Fabric(self.timeline, Random(f"{plan.seed}/network"), self.trace)  # noqa: S311
        self.fabric.normal = plan.network
        self.fabric.split = plan.split
        self.history = History()
        self.story: list[Event] = []
        self.violations: list[Violation] = []
        self.stopping = [False]
        self.began = 0.0
        self.normal_sync_s = DiskConditions().sync_s
        self.loop = self.timeline.process("world")
        self.machines = [self._machine(number) for number in range(1, plan.nodes + 1)]
        #: Set when a machine stops serving: until then its supervisor has nothing to do.
        self._unwell = {machine: asyncio.Event() for machine in self.machines}
        self.watcher = Watcher(self.machines, lambda: self.timeline.now, self.tell, self.violated)
        self.quorum_logs = QuorumLogs(self.machines, self.violated)
        self.losses = Losses(plan, self.machines, self.history.damaged)
        self.watcher.excuses = self._excuses
        self.watcher.min_insync = plan.shape.min_insync
        self.actors = [Actor(self, actor) for actor in plan.actors]
        self._restart_at: dict[Machine, float] = {}
        self._operating: list[asyncio.Task[None]] = []

    def _machine(self, number: int) -> Machine:
        plan = self.plan
        skew_ms, drift = plan.clock(number)
        clock = SimClock(self.timeline, offset_ms=skew_ms, rate=drift)
        machine = Machine(number, self.fabric, self.trace, clock, str(plan.seed), plan.settings, plan.shape)
        machine.turn_cost_s = plan.turn_cost_s
        machine.on_event = self._machine_event
        machine.on_failure = self._start_failed
        machine.on_node_event = lambda which, event: self.watcher.role_changed(which.name, event)
        if not plan.shape.alone:
            machine.on_serving = lambda which: self.watcher.serves(which)
        return machine

    # Telling.

    def tell(self, who: str, what: str) -> None:
        self.trace.note(who, what)
        self._story(who, what)

    def _story(self, who: str, what: str) -> None:
        self.story.append(Event(self.timeline.now, who, what))

    def _machine_event(self, machine: Machine, what: str) -> None:
        self._story(machine.name, what)
        if not machine.serving:
            self._unwell[machine].set()

    def violated(self, rule: str, what: str) -> None:
        self.violations.append(Violation(rule, what))
        self.tell("verdict", f"{rule}: {what}")

    def _start_failed(self, machine: Machine, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.violated("starts and stops", f"{machine!r}: {error!r} in {where.filename}:{where.lineno}")

    # What the nemesis asks for.

    def restart(self, machine: Machine, after_s: float) -> None:
        self._restart_at[machine] = self.timeline.now + after_s

    def lose_power(self, machine: Machine, severity: Severity, off_s: float) -> None:
        if not self.plan.shape.alone and self.losses.covered(machine, POWER):
            self.history.covered_losses += 1
        else:
            self.history.power_losses.append(self.timeline.now)
        self.losses.note(machine, POWER)
        machine.lose_power(severity)
        self.restart(machine, off_s)

    def operate(self, work: Coroutine[Any, Any, None]) -> None:
        """What an operator has to do after a fault, and does, though the time of faults may be over by then."""
        self._operating.append(asyncio.ensure_future(work))

    async def _supervise(self, machine: Machine) -> None:
        while True:
            if machine.state in (State.DOWN, State.OFF) and self.timeline.now >= self._restart_at.get(machine, 0):
                self._restart_at[machine] = 0.0
                if machine.incarnation % COLLECT_EVERY == 0:
                    gc.collect()
                if not await machine.start():
                    self.restart(machine, max(RETRY_START_S, self._restart_at[machine] - self.timeline.now))
            if machine.serving:
                self._unwell[machine].clear()
                await self._unwell[machine].wait()
            await asyncio.sleep(SUPERVISE_S)

    def session(self, name: str, host: str, loop: ProcessLoop) -> Session:
        return Session(
            name,
            [machine.address for machine in self.machines if machine.holds_partitions],
            SimNetwork(self.fabric, host, loop),
            SimClock(self.timeline),
            Random(f"{self.plan.seed}/{name}"),  # noqa: S311
            self.history,
            self.timeline,
            self.trace,
            self.stopping,
        )

    # The run.

    def run(self) -> Verdict:
        view: FinalView | None = None
        bound = self.plan.duration_s + START_BOUND_S + FINISH_BOUND_S + 3 * VERIFY_BOUND_S
        with self._logs_heard(), collected_by_hand():
            try:
                view = self.timeline.run(self._run(), self.loop, until=bound)
            except SimulationError as error:
                self.violated("liveness", str(error))
            except Exception as error:
                self.violated("no exceptions", "".join(traceback.format_exception(error)[-6:]))
            finally:
                self._end()
        if view is not None:
            self.violations += judge(self.plan, self.history, view)
        return self._verdict()

    def _end(self) -> None:
        self.timeline.end()
        gc.collect()  # tasks whose exception nobody has looked at tell it when they go
        for failure in self.timeline.failures:
            where = "".join(traceback.format_exception(failure.error)[-4:]) if failure.error else ""
            self.violated("no exceptions", f"{failure}\n{where}")

    async def _run(self) -> FinalView | None:
        if not await self._power_on():
            return None
        await self._bounded("setting up", START_BOUND_S, self._create_topics())
        self.began = self.timeline.now
        supervisors = [asyncio.ensure_future(self._supervise(machine)) for machine in self.machines]
        if not self.plan.shape.alone:
            supervisors.append(asyncio.ensure_future(self._watch()))
        acting = [asyncio.ensure_future(actor.run()) for actor in self.actors]
        nemesis = Nemesis(self)
        faults = [asyncio.ensure_future(nemesis.run(fault)) for fault in self.plan.faults]
        await asyncio.sleep(self.plan.duration_s)
        await self._heal(faults)
        await self._finish(acting)
        view = await self._verify()
        for task in supervisors:
            task.cancel()
        return view

    async def _power_on(self) -> bool:
        for machine in self.machines:
            machine.conditions.sync_s = self.normal_sync_s
        started = await asyncio.gather(*(machine.start() for machine in self.machines))
        for machine in self.machines:
            machine.platter.sync_all()
        return all(started)

    async def _watch(self) -> None:
        while True:
            self.watcher.look(self._excuses())
            self.quorum_logs.look()
            await asyncio.sleep(WATCH_S)

    def _excuses(self) -> Excuses:
        forgotten = bool(self.history.power_losses) and not self.plan.fsync_everywhere
        return Excuses(forgotten, list(self.losses.open()), self.history.damaged)

    async def _create_topics(self) -> None:
        factor = self.plan.shape.replication_factor
        wanted = [NewTopic(each.name, each.partitions, factor, configs=each.configs) for each in self.plan.topics]
        loop = self.timeline.process("setup")
        session = self.session("setup", "setup", loop)

        async def create() -> None:
            async with session.client() as client:
                await Admin(client).create_topics(wanted)

        await run_in(loop, create())

    async def _heal(self, faults: list[asyncio.Task[None]]) -> None:
        for fault in faults:
            fault.cancel()
        for outcome in await asyncio.gather(*faults, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        self.tell("world", "heals everything")
        self.fabric.mend_all()
        for machine in self.machines:
            machine.heal(self.normal_sync_s)
            if machine.state is State.SERVING and machine.offline:
                machine.kill()
            self._restart_at[machine] = 0.0

    async def _finish(self, acting: list[asyncio.Task[None]]) -> None:
        self.stopping[0] = True
        if not acting:
            return
        _, pending = await asyncio.wait(acting, timeout=FINISH_BOUND_S)
        if pending:
            names = [actor.name for actor, task in zip(self.actors, acting) if task in pending]
            self.violated("liveness", f"{', '.join(names)} did not finish within {FINISH_BOUND_S:.0f} s of healing")
        for actor, task in zip(self.actors, acting):
            if task.done() and (error := task.exception()) is not None:
                where = "".join(traceback.format_exception(error)[-5:])
                self.violated("no exceptions", f"{actor.name}: {error!r}\n{where}")
            elif not task.done():
                actor.kill()
                task.cancel()

    async def _verify(self) -> FinalView | None:
        """Everything is read, the nodes are restarted cleanly, everything is read again: see `changes`."""
        if not self.plan.shape.alone:
            await self._bounded("what operators do", CONVERGE_BOUND_S, _all(self._operating))
            await self._bounded("coming back into sync", CONVERGE_BOUND_S, self._converge())
        first = await self._bounded("reading everything", VERIFY_BOUND_S, self._read("verify1"))
        if first is None:
            return None
        starts = replica_starts(self.machines)
        # Before the restart, which may make wrong indexes anew.
        first.problems += indexes_fit(self.machines, self.history.damaged)
        first.problems += aborted_transactions_are_indexed(self.machines, self.history.damaged)
        for machine in self.machines:
            await self._bounded(f"stopping {machine.name}", START_BOUND_S, machine.stop())
            if not self.plan.shape.alone:
                what = f"coming back into sync after a restart of {machine.name}"
                await self._bounded(what, CONVERGE_BOUND_S, self._converge())
        again = await self._bounded("reading everything again", VERIFY_BOUND_S, self._read("verify2"))
        if again is not None:
            again.problems += first.problems
            changing = {topic.name for topic in self.plan.topics if topic.compacted}
            again.problems += changes(first, again, starts, self.history, changing)
            again.problems += indexes_fit(self.machines, self.history.damaged)
            again.problems += aborted_transactions_are_indexed(self.machines, self.history.damaged)
            if not self.history.power_losses or self.plan.fsync_everywhere:  # else an epoch may be given out twice
                again.problems += transactions_end_once(self.machines, self.history.damaged)
            if not self.plan.shape.alone:
                again.problems += replicas_agree(self.machines, changing, self.history.damaged)
        return again if isinstance(again, FinalView) else None

    async def _converge(self) -> None:
        """Every machine serves and knows the same, and every partition is led and in sync everywhere, to its end."""
        while self._apart():  # noqa: ASYNC110 - nodes don't know that they are watched
            await asyncio.sleep(SUPERVISE_S)

    def _apart(self) -> str:
        """What is still missing."""
        image = newest_image(self.machines)
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
            if not self.fabric.heard_out(machine.name, names):
                return f"{machine.name} has not got all that clients sent"
            if problem := not_committed(machine, self.history.damaged):
                return problem
        return ""

    async def _read(self, name: str) -> FinalView:
        loop = self.timeline.process(name)
        while not all(machine.serving for machine in self.machines):  # noqa: ASYNC110 - a supervisor starts them
            await asyncio.sleep(SUPERVISE_S)
        session = self.session(name, name, loop)
        return await run_in(loop, read_everything(session, self.plan, self.history))

    async def _bounded(self, what: str, seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            apart = "" if self.plan.shape.alone else f": {self._apart()}"
            self.violated("liveness", f"{what} took more than {seconds:.0f} s{apart}")
        except KafkaError as error:
            self.violated("liveness", f"{what} failed: {error.code.name} {error.message}")
        return None

    # What nodes log.

    @contextmanager
    def _logs_heard(self) -> Iterator[None]:
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
        }
        return Verdict(
            self.plan,
            self.violations,
            self.story,
            self.trace.digest,
            self.timeline.now,
            counts,
            history,
            self.trace.lines,
            None if self.plan.shape.alone else self.watcher,
        )


class _LogHandler(logging.Handler):
    """An exception in a node's log is a bug that the node has survived: still a bug."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        running = world.timeline.running
        if running is None or running.dead or record.thread != self._thread:  # a real broker may run in another one
            return
        message = record.getMessage()
        world.trace.note(running.name, f"log {record.levelname} {message}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR and not _excused(error):
            where = "".join(traceback.format_exception(error)[-4:])
            world.violated("no exceptions", f"{running.name} logs: {message}: {error!r}\n{where}")


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


def _excused(error: BaseException) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR


def run_plan(plan: Plan, *, keep_trace: bool = False) -> Verdict:
    return World(plan, keep_trace=keep_trace).run()
