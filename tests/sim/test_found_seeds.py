"""Repeats the runs in which the simulator found bugs. `docs/failures.md` describes each bug.

The same runs from a shell: `penstock sim --seed … --profile … --seconds … --faults … --actors …`.
"""

from dataclasses import dataclass, replace

import pytest

from penstock.sim.plan.draw import FIRST_AIMED, FIRST_LATER_ACTOR, draw_plan
from penstock.sim.plan.points import parse_point_fault
from penstock.sim.run.simulation import run_plan


@dataclass(frozen=True)
class Found:
    name: str
    seed: int
    profile: str
    seconds: float
    faults: tuple[int, ...] | None = None
    actors: tuple[int, ...] | None = None
    nodes: int = 1
    aimed: bool = False
    """True if the run has aimed faults. Older runs were recorded without them."""
    later_actors: bool = False
    """True if the run has actors of later kinds. Older runs were recorded without them."""
    at: tuple[str, ...] = ()
    """Faults at points."""


FOUND = [
    Found("the directory of a new log was not synced before an fsync acknowledgement", 23, "power", 2.8, (1,), (5, 6)),
    Found("coordinators answered before fsync where the broker promises it", 2, "power", 22.7, (5,), (2, 4)),
    Found("a torn entry of a transaction index passed for one", 12, "hostile", 40),
    Found("a failed read of a segment's first batch went past the log", 45, "hostile", 15.1, (5, 8)),
    Found("a full disk kept a node from stopping", 6, "hostile", 60),
    Found("nobody was told where replicas are on a new disk", 5, "power", 25, nodes=3),
    Found("a coordinator's second answer that was overdue kept the loop busy", 3, "hostile", 18, nodes=3),
    Found("a killed process was taken for a machine without power", 50, "hostile", 40, nodes=3),
    Found("a clean stop left a snapshot unsynced that a killed process had written", 83, "hostile", 40, nodes=3),
    Found(
        "a new leader did not tell the end of its log while a transaction was open",
        *(156, "hostile", 40, (28, 29, 31), (3,), 3),
    ),
    Found("a rotten marker kept a node from starting", 138, "hostile", 40, nodes=3),
    Found("a last known leader with an empty disk was elected", 363, "hostile", 40, nodes=3),
    Found("a process killed before it heard of its registration", 2064, "elections", 20, nodes=3, aimed=True),
    Found("a rotten offset passed for one", 3149, "hostile", 20, (1, 13, 14, 15, 1001), (5, 6), 3),
    Found("a client left a connection open", 3347, "hostile", 20, nodes=3, aimed=True),
    Found("a rotten length kept a reader waiting", 4976, "hostile", 20, nodes=3, aimed=True),
    Found("a formatted directory was not synced into the one above", 4027, "power", 20, (1, 2, 5, 6, 7), (2, 6), 3),
    Found("a hole in an index passed for an entry", 7034, "late", 20, nodes=3, aimed=True),
    Found("nothing was taken over behind a rotten batch", 7963, "hostile", 20, nodes=3, aimed=True),
    Found("a controller in a minority looked at silent brokers without a pause", 4, "hostile", 17, nodes=3),
    Found("compaction showed a transaction that was aborted behind an open one", 11, "calm", 40, later_actors=True),
    Found(
        "a replica that was down missed tombstones that compaction had removed",
        *(64, "compaction", 25),
        nodes=3,
        later_actors=True,
    ),
    Found(
        "a rebuild did not know that an aborted transaction began before the log",
        *(1012, "moves", 16.3, (3,), (301, 302, 303, 306), 3),
    ),
    Found(
        "a rebuild did not know that an open transaction began before the log",
        *(1012, "expiry", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a change of min.insync.replicas left a partition without a leader",
        *(1007, "configs", 20, (1, 3, 4, 5), (301, 303), 3),
    ),
    Found(
        "a rebuild after a truncation remembered producers that had expired",
        *(2021, "expiry", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a rebuild remembered producers that had expired before the clock jumped back",
        *(2045, "expiry", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a producer with a long timeout was gone and its transaction stayed open",
        *(2040, "expiry", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a returning leader had another batch where the new leader had deleted its own",
        *(2048, "expiry", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "no producer id was fetched for the abort of an overdue transaction",
        *(2015, "wrap", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a log and its adopted copy kept a node from starting",
        *(23, "moves", 11.3, (1,), (302, 304), 3),
        at=("rename transaction index tmp#1:error",),
    ),
    Found(
        "a machine whose disk failed during its start was not restarted",
        *(29, "moves", 12, (1, 2, 3), (301, 302, 304), 3),
        at=("remove segment deleted#3:error", "remove producer snapshot#7:pause"),
    ),
    Found(
        "compaction removed the last committed batch of a producer whose later batch was truncated",
        *(10, "points", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
        at=(
            "BrokerRegistration answer#1:power-sender",
            "write replication-offset-checkpoint tmp#17:power",
            "AlterPartition request#2:kill-receiver",
            "client ApiVersions request#26:pause-receiver",
            "rename time index#14:error",
        ),
    ),
    Found(
        "the replicas of an internal topic were compared while its last batch was replicated",
        *(20001, "groups", 40),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a disk was unmounted under a node that was starting",
        *(20011, "directories", 40),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a static member that joined again was taken for the owner of partitions that it had lost",
        *(30010, "groups", 20),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a directory stayed in use after the incarnation id could not be written to it",
        *(40029, "directories", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a node with old metadata accused a node that knew a later leader epoch",
        *(60216, "guard", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a replica was compared below the log start of a new leader, and a release without an answer was ignored",
        *(60203, "expiry", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "producers had expired when a log was loaded, and then the machine's clock jumped back",
        *(70030, "expiry", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "an acks=1 write to a stopping machine that still led was taken for kept",
        *(60437, "crash", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a deletion that arrived twice deleted the next topic of its name",
        *(60306, "network", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a starting machine with an empty disk read old metadata in which it led",
        *(60282, "elections", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "the time index of a killed process was taken for synced",
        *(80040, "unclean", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "the leader epochs that a killed process wrote were taken for synced",
        *(90021, "moves", 15, (1, 3)),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a leader of the quorum that resigned while it appended a decision kept the decision's image",
        *(95002, "network", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a leader of the quorum did not show a change of voters that was committed with a decision",
        *(98116, "power", 15),
        nodes=3,
        aimed=True,
        later_actors=True,
    ),
    Found(
        "a node whose only log directory failed during its start tried to register without one",
        *(80002, "points", 15, (1, 2), (7, 101, 102), 3),
        at=("rename recovery-point-offset-checkpoint tmp#11:kill", "sync transaction index tmp#1:error"),
    ),
]


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.name.replace(" ", "-"))
def test_simulated_run_that_once_found_a_bug_breaks_no_rule(found: Found) -> None:
    whole = draw_plan(found.seed, found.profile, nodes=found.nodes, duration_s=found.seconds)
    drawn = frozenset(fault.index for fault in whole.faults if found.aimed or fault.index < FIRST_AIMED)
    faults = drawn if found.faults is None else frozenset(found.faults)
    present = frozenset(actor.index for actor in whole.actors if found.later_actors or actor.index < FIRST_LATER_ACTOR)
    actors = present if found.actors is None else frozenset(found.actors)
    plan = replace(whole.only(faults, actors), points=tuple(map(parse_point_fault, found.at)))
    verdict = run_plan(plan)
    assert [str(violation) for violation in verdict.violations] == []
