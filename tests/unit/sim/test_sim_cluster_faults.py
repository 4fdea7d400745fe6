"""Tests network partitions between simulated machines, and the layouts of clusters."""

from itertools import permutations
from random import Random

import pytest

from penstock.sim.engine.cluster_layout import draw_layout, simple_layout
from penstock.sim.engine.links import Channel, Link
from penstock.sim.engine.loop import Timeline
from penstock.sim.faults.cluster_faults import isolated, ring, split
from penstock.sim.plan.draw import FIRST_AIMED, draw_plan
from penstock.sim.plan.profiles import PROFILES

NAMES = ["n1", "n2", "n3", "n4", "n5"]


@pytest.mark.parametrize("seed", range(20))
def test_split_fault_cuts_all_links_between_two_groups_and_no_link_within_a_group(seed: int) -> None:
    cut = set(split(NAMES, Random(seed)))
    assert cut
    assert all((other, one) in cut for one, other in cut)
    camp = {"n1"} | {other for one, other in permutations(NAMES, 2) if one == "n1" and (one, other) not in cut}
    for one, other in permutations(NAMES, 2):
        assert ((one, other) in cut) == ((one in camp) != (other in camp))


@pytest.mark.parametrize(("count", "neighbours"), [(4, 2), (5, 2), (7, 2)])
def test_ring_fault_lets_each_machine_reach_only_two_neighbours(count: int, neighbours: int) -> None:
    names = [f"n{number}" for number in range(1, count + 1)]
    cut = set(ring(names, Random(3)))
    for name in names:
        assert sum((name, other) not in cut for other in names if other != name) == neighbours


def test_ring_fault_disconnects_one_pair_of_three_machines_but_no_pair_of_two_machines() -> None:
    assert len(ring(NAMES[:3], Random(1))) == 2
    assert ring(NAMES[:2], Random(1)) == []


def test_machine_can_be_cut_off_from_other_machines_in_one_direction() -> None:
    assert isolated("n1", NAMES[:3], "out") == [("n1", "n2"), ("n1", "n3")]
    assert isolated("n1", NAMES[:3], "in") == [("n2", "n1"), ("n3", "n1")]
    assert len(isolated("n1", NAMES[:3])) == 4


def test_data_held_back_on_a_channel_arrives_in_order_after_the_release() -> None:
    timeline = Timeline(Random(1))
    link = Link("n1", "n2", timeline, Random(2))
    got: list[object] = []
    held, other = Channel(link, got.append), Channel(link, got.append)
    held.send("a")
    held.hold()
    held.send("b")
    other.send("x")
    while timeline._events:
        timeline.step()
    assert got == ["x"]
    held.release()
    held.send("c")
    while timeline._events:
        timeline.step()
    assert got == ["x", "a", "b", "c"]


@pytest.mark.parametrize("nodes", range(1, 8))
def test_every_drawn_cluster_layout_has_enough_brokers_for_its_replicas(nodes: int) -> None:
    for seed in range(40):
        layout = draw_layout(Random(seed), nodes)
        assert layout.nodes == tuple(range(1, nodes + 1))
        assert 1 <= layout.min_insync <= layout.replication_factor <= len(layout.brokers)
        assert len(layout.controllers) in (1, 2, 3, 5) or nodes == 4
    assert simple_layout(nodes).nodes == tuple(range(1, nodes + 1))


def test_some_drawn_cluster_layouts_have_controllers_that_are_not_brokers() -> None:
    layouts = [draw_layout(Random(seed), 6) for seed in range(40)]
    separate = [layout for layout in layouts if not set(layout.brokers) & set(layout.controllers)]
    assert separate
    assert len(separate) < len(layouts)
    assert separate[0].roles(separate[0].controllers[0]) == "controller"
    assert separate[0].roles(separate[0].brokers[0]) == "broker"


def test_runs_of_a_single_machine_have_no_cluster_faults_and_no_aimed_faults() -> None:
    kinds = {fault.kind for seed in range(40) for fault in draw_plan(seed, "hostile", nodes=1).faults}
    for profile in PROFILES.values():
        assert not kinds & {*profile.cluster_faults, *profile.aimed}
    kinds = {fault.kind for seed in range(40) for fault in draw_plan(seed, "hostile", nodes=3, duration_s=120).faults}
    assert kinds >= {*PROFILES["hostile"].cluster_faults, *PROFILES["hostile"].aimed}


def test_faults_at_certain_requests_do_not_change_the_numbering_of_other_faults() -> None:
    plans = [draw_plan(seed, "hostile", nodes=3, duration_s=60) for seed in range(20)]
    aimed = [sum(fault.index >= FIRST_AIMED for fault in plan.faults) for plan in plans]
    assert 0 < aimed.count(0) < len(aimed)
    for plan in plans:
        others = [fault.index for fault in plan.faults if fault.index < FIRST_AIMED]
        assert others == list(range(1, len(others) + 1))


def test_seed_gives_the_same_topics_and_simulated_clients_for_any_number_of_machines() -> None:
    alone, three = draw_plan(5, "hostile"), draw_plan(5, "hostile", nodes=3)
    assert [actor.kind for actor in alone.actors] == [actor.kind for actor in three.actors[: len(alone.actors)]]
    assert alone.topics == three.topics
    assert alone.layout.single_node
    assert not three.layout.single_node


def test_long_runs_have_longer_heartbeat_intervals_and_fetch_waits_than_short_runs() -> None:
    for seed in range(20):
        short, long = (draw_plan(seed, "calm", nodes=3, duration_s=seconds).layout.settings for seconds in (60, 600))
        for wait in ("broker.heartbeat.interval.ms", "replica.fetch.wait.max.ms"):
            assert int(long[wait]) >= int(short[wait])
        assert int(long["controller.quorum.fetch.timeout.ms"]) > 2000  # Kafka's default, which short runs have
        assert 3 * int(long["broker.heartbeat.interval.ms"]) < int(long["broker.session.timeout.ms"])
        assert 2 * int(long["replica.fetch.wait.max.ms"]) < int(long["replica.lag.time.max.ms"])
