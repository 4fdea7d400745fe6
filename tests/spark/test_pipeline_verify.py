"""Spark tasks that compare replicas find the same differences, at the same offsets, as a run without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_shell import Shell

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.admin import NewTopic
from penstock.client.comparison import Comparison, Difference, Found, Share, Target, at_rate, compare_replicas
from penstock.pipelines.verify import Reach, compare, look, put_together, shared_out
from penstock.records.batches import iter_batches
from penstock.testing import Broker, Cluster

SMALL = ("--master", "local[2]", "--memory", "700m")


def target(topic: str, partition: int = 0) -> Target:
    return Target((topic, partition), b"", 1, (1, 2), compacted=False)


def seen(first: int, end: int) -> Comparison:
    return Comparison(("t", 0), 1, first, end, compared=[1, 2])


def test_verify_splits_the_ranges_of_all_partitions_into_about_the_wanted_number_of_tasks() -> None:
    targets = [target("large"), target("small"), target("gone"), target("empty")]
    parts = shared_out(targets, [seen(0, 1000), seen(0, 5), "no leader", seen(7, 7)], 10, tasks=20)
    assert [part.target.partition[0] for part in parts] == ["large"] * 17 + ["small"]
    assert [span for part in parts[:-1] for span in part.spans] == [(at, at + 10) for at in range(0, 1000, 10)]
    assert [part.begins for part in parts] == [True, *[False] * 16, True]
    assert max(len(part.spans) for part in shared_out([target("t")], [seen(0, 10_000)], 1, tasks=2)) == 100


def test_verify_combines_the_results_of_spark_tasks_in_offset_order() -> None:
    far, near = Difference(2, 0, 9, 3, "other bytes"), Difference(2, 10, 19, 12, "other bytes")
    found = put_together(target("t"), seen(0, 20), [Found([far], [b"a"]), Found([near], [b"b"])])
    assert (found.differences, found.ranges, found.left_out) == ([far, near], 2, {})
    failed = put_together(target("t"), seen(0, 20), [Found([far], [b"a"]), "Node 2 can't be read."])
    assert failed.left_out == {1: "Node 2 can't be read.", 2: "Node 2 can't be read."}
    assert failed.differences == []


def test_verify_in_spark_tasks_has_the_same_result_as_in_one_process() -> None:
    with Broker(topics={"t": 2}) as broker, broker.client() as client:
        with client.producer() as producer:
            producer.send_many("t", [(b"%d" % n, b"v%d" % n, (), None) for n in range(200)])
        [topic] = client.metadata(["t"]).topics
        targets = [
            Target(("t", part.partition_index), topic.topic_id, part.leader_id, tuple(part.replica_nodes), False)
            for part in topic.partitions
        ]
        reach = Reach(broker.bootstrap, 30.0, None)
        outlines = look(reach, targets)
        parts: list[Share] = pickle.loads(pickle.dumps(shared_out(targets, outlines, 10, tasks=6)))
        assert len(parts) > 2
        done = [(part.target, compare(reach, part)) for part in parts]
        for at, each in enumerate(targets):
            found = put_together(each, outlines[at], [result for whose, result in done if whose == each])
            alone = client.run(compare_replicas(client.asynchronous, each, range_offsets=10, paced=at_rate(None)))
            assert (found.digest, found.ranges, found.first, found.end) == (
                alone.digest,
                alone.ranges,
                alone.first,
                alone.end,
            )


# --- on Spark -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    pytest.importorskip("pyspark")
    with Shell(tmp_path_factory.mktemp("state")) as made:
        yield made


def damage(path: Path, number: int) -> int:
    """Flips a bit of the last byte of a batch; returns the batch's first offset."""
    data = bytearray(path.read_bytes())
    batches = list(iter_batches(bytes(data), allow_partial=True))
    header, _ = batches[number]
    end = sum(len(batch) for _, batch in batches[: number + 1])
    data[end - 1] ^= 1
    path.write_bytes(data)
    return header.base_offset


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_verify_with_spark_finds_the_offset_at_which_a_replica_was_changed_on_disk(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def alone(*words: str) -> tuple[int, Any]:
        code = main(["cluster", "verify", *words, "--range", "20", "-b", cluster.bootstrap, "--json"])
        return code, json.loads(capsys.readouterr().out)

    def by_spark(*words: str) -> tuple[int, Any, str]:
        done = shell.run("cluster", "verify", *words, "--range", "20", "-b", cluster.bootstrap, "--json", *SMALL)
        return done.code, done.json(), done.err

    with Cluster(data=tmp_path) as cluster:
        with cluster.client() as client:
            client.create_topics([NewTopic("t", assignments=((1, 2, 3), (2, 3, 1)))])
            client.create_topics([NewTopic("keyed", assignments=((3, 1),), configs={"cleanup.policy": "compact"})])
            with client.producer() as producer:
                for number in range(0, 300, 15):
                    batch = [(b"k%d" % (n % 7), b"v%d" % n, (), None) for n in range(number, number + 15)]
                    producer.send_many("keyed", batch)
                    for partition in range(2):
                        producer.send_many("t", batch, partition=partition)
                    producer.flush()
        cluster.wait_in_sync("t", "keyed")
        code, found, said = by_spark("t", "keyed")
        assert (code, found) == alone("t", "keyed")
        assert code == Exit.OK
        assert [(each["topic"], each["partition"], each["ranges"]) for each in found] == [
            ("keyed", 0, 1),
            ("t", 0, 15),
            ("t", 1, 15),
        ]
        assert "all that was compared is the same" in said
        assert "parts" in said

        cluster.stop(3)
        offset = damage(tmp_path / "3" / "t-1" / "00000000000000000000.log", 9)
        cluster.start(3)
        cluster.wait_in_sync("t", "keyed")
        code, found, said = by_spark()
        [damaged] = [each for each in found if each["differences"]]
        assert code == Exit.FAILED
        assert (damaged["topic"], damaged["partition"]) == ("t", 1)
        # Its batch may reach into the next range, which then differs as well.
        assert {each["replica"] for each in damaged["differences"]} == {3}
        assert damaged["differences"][0] == {
            "replica": 3,
            "first_offset": offset // 20 * 20,
            "last_offset": offset // 20 * 20 + 19,
            "at_offset": offset,
            "what": "damaged: its checksum is wrong",
        }
        assert offset > 0
        assert f"{len(damaged['differences'])} ranges differ" in said
        assert alone("t") == (Exit.FAILED, [each for each in found if each["topic"] == "t"])

        done = shell.run("cluster", "verify", "absent", "-b", cluster.bootstrap, *SMALL)
        assert (done.code, done.err) == (
            Exit.NOT_FOUND,
            "penstock: absent: there is no such topic or partition\n",
        )
