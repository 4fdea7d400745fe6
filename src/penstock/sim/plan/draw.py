"""Draws the plan of a seed: the cluster's settings, the actors, and the faults with their times.

Each seed draws which kinds of faults and actors take part, and how the cluster is set up (swarm testing). One kind of
fault may hide the effects of another kind, so some seeds have only one of them. Each actor and each fault is drawn from
its own random stream. So if an actor or a fault is left out, the others do not change, and a failing run can be shrunk.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.disk.volume import Severity
from penstock.sim.engine.cluster_layout import ClusterLayout, draw_layout
from penstock.sim.engine.links import Conditions
from penstock.sim.plan.draw_actors import ACTORS, stream, writing
from penstock.sim.plan.plan import ActorPlan, FaultPlan, Plan, TopicPlan
from penstock.sim.plan.profiles import PROFILES, Profile
from penstock.sim.plan.workloads.registry import WORKLOADS

DEFAULT_DURATION_S = 60.0
#: In runs of a cluster up to this long, clients pause briefly. In longer runs, for faults that take minutes such as
#: expiry, they pause for longer.
DENSE_S = 120.0
LONG_PACES = (3.0, 10.0, 10.0)
#: Index of the first aimed fault, above the indexes of all other faults.
FIRST_AIMED = 1_001
#: Index of the first actor of a kind that was added later: actors of recorded seeds keep their indexes.
FIRST_LATER_ACTOR = 101
TABLE_TRANSACTIONS = "table transactional"
CLUSTER_PACE = 2.0
LASTING_S = (0.3, 1.5, 5.0, 12.0)


def draw_plan(seed: int, profile: str = "hostile", *, nodes: int = 1, duration_s: float = DEFAULT_DURATION_S) -> Plan:
    random = stream(seed, "setup")
    layout = draw_layout(stream(seed, f"shape/{nodes}"), nodes)
    if duration_s > DENSE_S:
        layout = layout.with_long_waits()
    fsync_everywhere = random.random() < 0.35
    topics = _topics(stream(seed, "topics"), fsync_everywhere)
    plan = Plan(
        seed,
        profile,
        nodes,
        duration_s,
        _settings(random, fsync_everywhere),
        topics,
        _actors(seed, topics, layout, duration_s),
        _faults(seed, PROFILES[profile], duration_s, nodes),
        network=Conditions(delay_s=random.choice((0.0001, 0.001, 0.02)), jitter_s=random.choice((0.0, 0.0005, 0.02))),
        split=random.choice((0.0, 0.1, 0.5)),
        fsync_everywhere=fsync_everywhere,
        turn_cost_s=random.choice((0.0, 0.0, 0.0005)),
        skew_ms=random.choice((0, random.randint(-100_000, 100_000))),
        drift=random.choice((1.0, 1.0, random.uniform(0.99, 1.01))),
        layout=layout,
        clocks=tuple(_clock(stream(seed, f"clock/{node_id}")) for node_id in range(2, nodes + 1)),
    )
    return WORKLOADS[profile](plan) if profile in WORKLOADS else plan


def _clock(random: Random) -> tuple[int, float]:
    return (
        random.choice((0, random.randint(-100_000, 100_000))),
        random.choice((1.0, 1.0, random.uniform(0.99, 1.01))),
    )


def _settings(random: Random, fsync_everywhere: bool) -> dict[str, str]:
    settings = {
        "offsets.topic.num.partitions": str(random.choice((1, 3))),
        "transaction.state.log.num.partitions": str(random.choice((1, 3))),
        "auto.create.topics.enable": "false",
        "replica.high.watermark.checkpoint.interval.ms": str(random.choice((500, 5_000))),
        "group.consumer.session.timeout.ms": "45000",
        "group.consumer.heartbeat.interval.ms": "5000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "log.retention.check.interval.ms": "5000",
        "log.initial.task.delay.ms": "1000",
        "log.cleaner.backoff.ms": "4000",
        "offsets.topic.segment.bytes": "1048576",
        "metadata.log.max.record.bytes.between.snapshots": str(random.choice((2_000, 20_000, 20_971_520))),
    }
    if fsync_everywhere:
        settings["log.flush.interval.messages"] = "1"
    return settings


def _topics(random: Random, fsync_everywhere: bool) -> tuple[TopicPlan, ...]:
    topics = []
    for number in range(random.randint(1, 3)):
        fsync = fsync_everywhere or random.random() < 0.5
        configs = {
            "segment.ms": random.choice(("1500", "8000", "600000")),
            "index.interval.bytes": random.choice(("64", "512", "4096")),
            "file.delete.delay.ms": random.choice(("0", "60000")),
        }
        if fsync and not fsync_everywhere:
            key, value = random.choice((("flush.messages", "1"), ("penstock.acks.fsync", "true")))
            configs[key] = value
        topics.append(TopicPlan(f"t{number}", random.randint(1, 3), configs, fsync))
    first = topics[0]
    topics.append(TopicPlan("copies", 1, dict(first.configs), first.fsync, mixed=False))
    table = {
        **first.configs,
        "cleanup.policy": "compact",
        "segment.ms": "1500",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "3000",
    }
    topics.append(TopicPlan("table", 1, table, first.fsync, mixed=False))
    return tuple(topics)


def _actors(
    seed: int, topics: tuple[TopicPlan, ...], layout: ClusterLayout, duration_s: float
) -> tuple[ActorPlan, ...]:
    """Draws the actors. The first actor is always an idempotent producer, because a run without a writer checks
    nothing."""
    kinds = ["idempotent"]
    for kind, (share, most, _) in ACTORS.items():
        random = stream(seed, f"actors/{kind}")
        if random.random() < share:
            kinds += [kind] * random.randint(1, most)
    if not layout.single_node and stream(seed, "actors/mover").random() < 0.5:
        kinds.append("mover")
    partitions = [(topic.name, index) for topic in topics if topic.mixed for index in range(topic.partitions)]
    actors = tuple(
        ActorPlan(index, kind, ACTORS[kind][2](stream(seed, f"actor/{index}/{kind}"), partitions, index))
        for index, kind in enumerate(kinds, 1)
    )
    actors += (*_table_transactions(seed), *_topic_recreator(seed, layout))
    pace = CLUSTER_PACE * (1.0 if duration_s <= DENSE_S else stream(seed, "pace").choice(LONG_PACES))
    return actors if layout.single_node else tuple(_with_pace(actor, pace) for actor in actors)


def _table_transactions(seed: int) -> tuple[ActorPlan, ...]:
    """Draws writers of transactions to the compacted topic.

    The first writer has long transactions, so that transactions of the other writers end while its transaction is open.
    """
    random = stream(seed, f"actors/{TABLE_TRANSACTIONS}")
    count = random.randint(2, 3) if random.random() < 0.4 else 0
    return tuple(
        ActorPlan(
            index,
            TABLE_TRANSACTIONS,
            writing(
                random,
                [("table", 0)],
                transactional_id=f"table{index}",
                abort=0.5,
                keys=random.choice((3, 20, 500)),
                pause_s=8.0 if index == FIRST_LATER_ACTOR else random.choice((0.3, 1.0)),
            ),
        )
        for index in range(FIRST_LATER_ACTOR, FIRST_LATER_ACTOR + count)
    )


def _topic_recreator(seed: int, layout: ClusterLayout) -> tuple[ActorPlan, ...]:
    random = stream(seed, "actors/made again")
    if random.random() >= 0.3:
        return ()
    params = {"pause_s": random.choice((0.3, 1.0, 3.0)), "judge_writes": layout.single_node}
    return (ActorPlan(FIRST_LATER_ACTOR + 100, "remaker", params),)


def _with_pace(actor: ActorPlan, pace: float) -> ActorPlan:
    """Returns the actor with pauses that are `pace` times as long. Clusters need longer pauses, because their runs last
    longer than runs of one node."""
    return replace(actor, params={**actor.params, "pause_s": pace * actor.params["pause_s"]})


def _faults(seed: int, profile: Profile, duration_s: float, nodes: int) -> tuple[FaultPlan, ...]:
    kinds = profile.faults if nodes == 1 else profile.faults + profile.cluster_faults
    on = [kind for kind in kinds if stream(seed, f"swarm/{kind}").random() < 0.5]
    random = stream(seed, "faults")
    every_s = profile.every_s * random.choice((0.6, 1.0, 2.0) if nodes == 1 else (0.4, 0.7, 1.2))
    if not on and kinds:
        on = [random.choice(kinds)]
    faults: list[FaultPlan] = []
    at = random.expovariate(1 / every_s)
    while at < duration_s and on:
        index = len(faults) + 1
        fault = _fault(stream(seed, f"fault/{index}"), index, on[int(random.random() * len(on))], at)
        if nodes > 1:  # a cluster needs longer to notice a fault
            fault = replace(fault, lasts=stream(seed, f"lasts/{index}").choice(LASTING_S))
        faults.append(fault)
        at += random.expovariate(1 / every_s)
    if nodes > 1:
        faults += _aimed(seed, profile, duration_s)
    return tuple(faults)


def _aimed(seed: int, profile: Profile, duration_s: float) -> list[FaultPlan]:
    """Draws aimed faults, which wait for a certain request or election. They have a separate random stream, so that
    they don't change the other faults of a seed."""
    random = stream(seed, "aimed")
    found: list[FaultPlan] = []
    if random.random() >= profile.aimed_share:
        return found
    kinds = random.sample(profile.aimed, len(profile.aimed))  # in turns
    at = random.expovariate(1 / profile.aimed_every_s)
    while at < duration_s:
        index = FIRST_AIMED + len(found)
        found.append(_fault(stream(seed, f"fault/{index}"), index, kinds[len(found) % len(kinds)], at))
        at += random.expovariate(1 / profile.aimed_every_s)
    return found


def _fault(random: Random, index: int, kind: str, at: float) -> FaultPlan:
    """Draws the parameters of every kind of fault, also those that this fault does not use, so that each fault takes
    the same number of random numbers."""
    params = {
        "draw": random.random(),
        "changes": random.randint(1, 40),
        "severity": random.choice((Severity.SOME, Severity.SOME, Severity.SOME, Severity.EVERYTHING, Severity.NOTHING)),
        "conditions": Conditions(
            delay_s=random.choice((0.05, 0.5, 2.0)),
            jitter_s=random.choice((0.0, 0.5)),
            loss=random.choice((0.05, 0.3)),
            bytes_per_s=random.choice((500.0, 5_000.0)),
        ),
        "jump_ms": random.choice((-1, 1)) * int(10 ** random.uniform(2, 7)),
        "free_bytes": random.randint(0, 5_000),
        "error": random.choice((0.02, 0.2)),
        "whole": random.random() < 0.3,
        "outgoing": random.random() < 0.5,
    }
    return FaultPlan(index, kind, at, random.choice((0.2, 0.5, 1.5, 5.0)), params)
