"""Injects this fault: a voter of the quorum loses its disk with its votes, and an operator replaces the voter.

The operator removes the old voter and adds the new voter, as `penstock quorum remove-voter` and `add-voter` do. Only
dynamic voters (KIP-853) can be replaced: the directory id distinguishes the new disk from the old disk. The fault
replaces one voter at a time, and only if a majority of the other voters still have their disks: no guarantee holds if
more disks are lost.
"""

from __future__ import annotations

import asyncio
from random import Random

from penstock.client.cluster_admin import ClusterAdmin
from penstock.protocol.errors import KafkaError
from penstock.sim.actors.session import Session
from penstock.sim.engine.cluster_layout import CONTROLLER_PORT
from penstock.sim.engine.loop import run_in
from penstock.sim.engine.machine import CLUSTER_ID, Machine
from penstock.sim.faults.lost_machines import WIPE
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

#: With fewer voters, no majority is left to remove the lost one.
FEWEST_VOTERS = 3
TRY_AGAIN_S = 0.5


class VoterReplacement:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self._replacing: Machine | None = None

    async def lose_voter(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        voters = [machine for machine in target.machines if machine.votes]
        machine = random.choice(voters)
        spared = self._spared(machine, voters)
        if spared:
            target.note(fault, f"spares {machine.name}'s disk: {spared}")
            return
        if machine.holds_partitions:
            target.losses.note(machine, WIPE)
        self._replacing = machine
        machine.kill()
        machine.wipe(votes_too=True)
        target.restart(machine, fault.lasts)
        target.supervisor.operate(self._put_back(machine))

    def _spared(self, machine: Machine, voters: list[Machine]) -> str:
        if not self._target.plan.layout.dynamic or len(voters) < FEWEST_VOTERS:
            return "no majority could replace it"
        if self._replacing is not None:
            return f"{self._replacing.name} has not been replaced yet"
        if machine.holds_partitions and not self._target.losses.covered(machine, WIPE):
            return "too many have not recovered yet"
        return ""

    async def _put_back(self, machine: Machine) -> None:
        target = self._target
        loop = target.timeline.process(f"operator of {machine.name}")
        session = target.clients.session(f"operator of {machine.name}", "operator", loop)
        await run_in(loop, put_back(session, machine))
        self._replacing = None
        target.story.add("operator", f"has put {machine.name} back among the voters")


async def put_back(session: Session, machine: Machine) -> None:
    """Removes the voter of the machine's old disk from the quorum and adds the voter of its new disk.

    Retries until the voter with the new disk votes.
    """
    while True:
        try:
            async with session.client() as client:
                while not await _step(ClusterAdmin(client), machine):  # noqa: ASYNC110 - clients are not notified of voters
                    await asyncio.sleep(TRY_AGAIN_S)
                return
        except KafkaError as error:
            session.note(f"tries again: {error.code.name}")
            await asyncio.sleep(TRY_AGAIN_S)


async def _step(admin: ClusterAdmin, machine: Machine) -> bool:
    """Takes the next step of the replacement. Returns True if the machine votes with its new disk."""
    directory = machine.voter_directory()
    if directory is None:
        return False  # the machine is down: the id of its new disk is not known yet
    part = (await admin.describe_quorum()).topics[0].partitions[0]
    voter = next((each for each in part.current_voters if each.replica_id == machine.node_id), None)
    if voter is not None and voter.replica_directory_id == directory:
        return True
    if voter is not None:
        await admin.remove_voter(machine.node_id, voter.replica_directory_id, cluster_id=CLUSTER_ID)
        return False
    new = next((each for each in part.observers if each.replica_id == machine.node_id), None)
    if new is not None and new.replica_directory_id == directory:
        listeners = [("CONTROLLER", machine.name, CONTROLLER_PORT)]
        await admin.add_voter(machine.node_id, new.replica_directory_id, listeners, cluster_id=CLUSTER_ID)
    return False
