"""Runs the actors: the simulated clients of the cluster. Each actor is a process on its own host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from penstock.sim.actors.administrator import Administrator, AdministratorOptions
from penstock.sim.actors.classic_member import ClassicMember
from penstock.sim.actors.configurer import Configurer, ConfigurerOptions
from penstock.sim.actors.consumers import Copier, Member, Reader, ReaderOptions
from penstock.sim.actors.deleter import Deleter, DeleterOptions
from penstock.sim.actors.directory_mover import DirectoryMover, DirectoryMoverOptions
from penstock.sim.actors.mover import Mover, MoverOptions
from penstock.sim.actors.producers import TransactionalWriter, Writer, WriterOptions
from penstock.sim.actors.session import Clients, Session
from penstock.sim.actors.share_members import ShareMember, ShareMemberOptions
from penstock.sim.actors.shared_recreator import SharedRecreator, SharedRecreatorOptions
from penstock.sim.actors.streams_members import StreamsMember, StreamsMemberOptions
from penstock.sim.actors.table_reader import TableReader, TableReaderOptions
from penstock.sim.actors.topic_recreation import RecreatorOptions, TopicRecreator
from penstock.sim.engine.loop import ProcessDied, ProcessLoop, run_in
from penstock.sim.plan.plan import ActorPlan

#: A killed actor starts again after this time.
RESTART_S = 1.0


class Actor:
    """Runs one simulated client of the plan. After a kill, the client starts again as a new incarnation."""

    def __init__(self, clients: Clients, plan: ActorPlan) -> None:
        self._clients = clients
        self.plan = plan
        self.host = f"c{plan.index}"
        self.incarnations = 0
        self.loop: ProcessLoop | None = None
        clients.environment.fabric.host(self.host)

    @property
    def name(self) -> str:
        return f"{self.plan.kind[:5]}{self.plan.index}"

    @property
    def alive(self) -> bool:
        return self.loop is not None and not self.loop.dead

    def kill(self) -> None:
        if self.loop is not None:
            self.loop.kill()
            self._clients.environment.fabric.process_died(self.host, self.loop)

    async def run(self) -> None:
        environment = self._clients.environment
        while not self._clients.stopping:
            self.incarnations += 1
            self.loop = environment.timeline.process(f"{self.host}.{self.incarnations}")
            self.loop.turn_cost_s = environment.turn_cost_s
            session = self._clients.session(f"{self.name}#{self.incarnations}", self.host, self.loop)
            try:
                await run_in(self.loop, _role(session, self.plan, environment.layout.replication_factor).run())
                return
            except ProcessDied:
                await asyncio.sleep(RESTART_S)


class Role(Protocol):
    async def run(self) -> None:
        """Runs the client's workload until the simulation signals all clients to finish."""


#: Kind of an actor → its role and the options of that role.
ROLES: dict[str, tuple[Callable[[Session, Any], Role], Callable[..., Any]]] = {
    "plain": (Writer, WriterOptions),
    "idempotent": (Writer, WriterOptions),
    "table": (Writer, WriterOptions),
    "transactional": (TransactionalWriter, WriterOptions),
    "table transactional": (TransactionalWriter, WriterOptions),
    "table reader": (TableReader, TableReaderOptions),
    "reader": (Reader, ReaderOptions),
    "member": (Member, ReaderOptions),
    "classic member": (ClassicMember, ReaderOptions),
    "admin": (Administrator, AdministratorOptions),
    "remaker": (TopicRecreator, RecreatorOptions),
    "deleter": (Deleter, DeleterOptions),
    "shared recreator": (SharedRecreator, SharedRecreatorOptions),
    "configurer": (Configurer, ConfigurerOptions),
    "share member": (ShareMember, ShareMemberOptions),
    "streams member": (StreamsMember, StreamsMemberOptions),
    "mover": (Mover, MoverOptions),
    "directory mover": (DirectoryMover, DirectoryMoverOptions),
}
#: Actors that create topics, or let a coordinator create them.
CREATORS = frozenset({"admin", "remaker", "shared recreator", "streams member"})


def _role(session: Session, plan: ActorPlan, factor: int) -> Role:
    params = dict(plan.params)
    if plan.kind == "copier":
        writing = WriterOptions((params["target"],), transactional_id=params.pop("transactional_id"))
        return Copier(session, ReaderOptions(**params), writing)
    if plan.kind in CREATORS:
        params["replication_factor"] = factor
    role, options = ROLES[plan.kind]
    return role(session, options(**params))
