"""Those who use the cluster: each a process on a host of its own, one life after another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.sim.actors.administrator import Administration, Administrator
from penstock.sim.actors.consumers import Copier, Member, Reader, Reading
from penstock.sim.actors.mover import Mover, Moving
from penstock.sim.actors.producers import TransactionalWriter, Writer, Writing
from penstock.sim.actors.session import Session
from penstock.sim.actors.topic_recreation import Remaker, Remaking
from penstock.sim.engine.loop import ProcessDied, ProcessLoop, run_in
from penstock.sim.run.plan import ActorPlan

if TYPE_CHECKING:
    from penstock.sim.run.world import World


class Actor:
    """Somebody who does something, one life after another."""

    def __init__(self, world: World, plan: ActorPlan) -> None:
        self._world = world
        self.plan = plan
        self.host = f"c{plan.index}"
        self.lives = 0
        self.loop: ProcessLoop | None = None
        world.fabric.host(self.host)

    @property
    def name(self) -> str:
        return f"{self.plan.kind[:5]}{self.plan.index}"

    @property
    def alive(self) -> bool:
        return self.loop is not None and not self.loop.dead

    def kill(self) -> None:
        if self.loop is not None:
            self.loop.kill()
            self._world.fabric.process_died(self.host, self.loop)

    async def run(self) -> None:
        world = self._world
        while not world.stopping[0]:
            self.lives += 1
            self.loop = world.timeline.process(f"{self.host}.{self.lives}")
            self.loop.turn_cost_s = world.plan.turn_cost_s
            session = world.session(f"{self.name}#{self.lives}", self.host, self.loop)
            try:
                await run_in(self.loop, _role(session, self.plan, world.plan.shape.replication_factor).run())
                return
            except ProcessDied:
                await asyncio.sleep(1.0)


def _role(session: Session, plan: ActorPlan, factor: int) -> Writer | Reader | Administrator | Remaker | Mover:
    params = dict(plan.params)
    match plan.kind:
        case "plain" | "idempotent" | "table":
            return Writer(session, Writing(**params))
        case "transactional" | "table transactional":
            return TransactionalWriter(session, Writing(**params))
        case "reader":
            return Reader(session, Reading(**params))
        case "member":
            return Member(session, Reading(**params))
        case "copier":
            writing = Writing((params["target"],), transactional_id=params.pop("transactional_id"))
            return Copier(session, Reading(**params), writing)
        case "admin":
            return Administrator(session, Administration(**params, replication_factor=factor))
        case "remaker":
            return Remaker(session, Remaking(**params, replication_factor=factor))
        case "mover":
            return Mover(session, Moving(**params))
    raise AssertionError(plan.kind)
