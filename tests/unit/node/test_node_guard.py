"""The guard on three nodes with real disks and sockets."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.events.kinds import GuardFinding, ReplicaRefilled
from penstock.records.header import HEADER_SIZE
from penstock.testing import Cluster
from waiting import until

LIMIT_S = 120.0
CONFIG = {
    "penstock.guard.enable": "true",
    "penstock.guard.scrub.interval.ms": "100",
    "penstock.guard.check.interval.ms": "100",
}


def test_guard_finds_a_flipped_bit_on_one_node_and_refills_the_replica_from_another_node(tmp_path: Path) -> None:
    with Cluster(data=tmp_path, topics={"t": 1}, config=CONFIG) as cluster:
        cluster.wait_in_sync("t", timeout_s=LIMIT_S)
        with cluster.client() as client, client.producer() as producer:
            for value in (b"a", b"b", b"c"):
                producer.send("t", value)
                producer.flush()
        rotten = cluster.leader("t")
        until(lambda: cluster.node(rotten).broker.partitions.get("t", 0).log.high_watermark == 3)
        path = next(tmp_path.glob(f"{rotten}/**/t-0/00000000000000000000.log"))
        good = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(HEADER_SIZE + 8)
            file.write(bytes((good[HEADER_SIZE + 8] ^ 1,)))

        def refilled() -> bool:
            return cluster.node(rotten).broker.events.counts[ReplicaRefilled.KIND] > 0

        until(refilled)
        assert path.read_bytes() == good
        assert [record.value for record in cluster.records("t")] == [b"a", b"b", b"c"]
        events = [entry.event for each in (1, 2, 3) for entry in cluster.node(each).broker.events.entries]
        findings = [event for event in events if isinstance(event, GuardFinding)]
        assert {event.accused for event in findings} == {rotten}
        assert "checksum fails" in {event.finding for event in findings}
