"""Tests how records build the image: each kind of record, copy on write, transactions and snapshots."""

import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.check import InvariantError
from penstock.metadata.apply import apply, apply_batches
from penstock.metadata.framing import decode_record, encode_record, record_class
from penstock.metadata.image import EMPTY_IMAGE, Fencing, MetadataImage, PartitionImage, TopicChanges, topic_changes
from penstock.metadata.snapshot import records_of
from tools.examples import examples

ID_A, ID_B = bytes([1] * 16), bytes([2] * 16)
DIR_1, DIR_2 = bytes([7] * 16), bytes([8] * 16)


def record(kind: int, /, **fields: Any) -> Any:
    return record_class(kind)(**fields)


def nested(kind: int, struct: str, /, **fields: Any) -> Any:
    return getattr(sys.modules[record_class(kind).__module__], struct)(**fields)


def topic(name: str, topic_id: bytes, partitions: int = 1) -> list[Any]:
    return [
        record(2, name=name, topic_id=topic_id),
        *(
            record(
                3,
                partition_id=index,
                topic_id=topic_id,
                replicas=[1, 2],
                isr=[1, 2],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=[DIR_1, DIR_2],
            )
            for index in range(partitions)
        ),
    ]


def broker(broker_id: int, epoch: int, **fields: Any) -> Any:
    return record(0, broker_id=broker_id, broker_epoch=epoch, incarnation_id=DIR_1, rack=None, **fields)


def after(*records: Any) -> MetadataImage:
    return apply(EMPTY_IMAGE, records)


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = after(*topic("a", ID_A, 2))
    assert image.topics["a"] is image.topics_by_id[ID_A]
    assert sorted(image.topics["a"].partitions) == [0, 1]
    assert image.partition("a", 1) == PartitionImage(
        replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=0, directories=(DIR_1, DIR_2)
    )
    assert image.partition("a", 2) is None
    assert image.partition_count == 2
    assert image.offset == 2


def test_applying_records_never_changes_an_older_image() -> None:
    first = after(*topic("a", ID_A))
    second = apply(first, topic("b", ID_B))
    third = apply(second, [record(9, topic_id=ID_A)])
    assert set(first.topics) == {"a"}
    assert set(second.topics) == {"a", "b"}
    assert set(third.topics) == {"b"}
    assert second.topics["a"] is first.topics["a"]


def test_new_image_shares_unchanged_maps_with_the_previous_image() -> None:
    first = after(*topic("a", ID_A), record(4, resource_type=2, resource_name="a", name="x", value="1"))
    second = apply(first, [record(20)])
    assert second.topics is first.topics
    assert second.configs is first.configs
    assert second.version == first.version + 1


def test_removing_a_topic_removes_everything_about_it_from_the_image() -> None:
    image = after(*topic("a.b", ID_A, 3), record(4, resource_type=2, resource_name="a.b", name="x", value="1"))
    gone = apply(image, [record(9, topic_id=ID_A)])
    assert gone == EMPTY_IMAGE.__class__(offset=gone.offset)


def test_topic_can_be_deleted_and_created_again_in_one_batch() -> None:
    image = after(*topic("a", ID_A, 3))
    again = apply(image, [record(9, topic_id=ID_A), *topic("a", ID_B, 1)])
    assert again.topics["a"].topic_id == ID_B
    assert again.partition_count == 1
    changes = topic_changes(image, again)
    assert changes == TopicChanges((again.topics["a"],), (image.topics["a"],), ())


def test_new_leader_raises_the_leader_epoch_and_every_change_raises_the_partition_epoch() -> None:
    image = after(*topic("a", ID_A))
    moved = apply(image, [record(5, partition_id=0, topic_id=ID_A, leader=2, isr=[2])])
    partition = moved.topics["a"].partitions[0]
    assert (partition.leader, partition.isr) == (2, (2,))
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    grown = apply(moved, [record(5, partition_id=0, topic_id=ID_A, isr=[2, 1])])
    partition = grown.topics["a"].partitions[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 2)
    assert topic_changes(image, grown).changed == ((image.topics["a"], grown.topics["a"]),)


def test_eligible_leader_replicas_are_set_and_cleared() -> None:
    image = after(*topic("a", ID_A), *topic("b", ID_B))
    change = {"partition_id": 0, "eligible_leader_replicas": [2], "last_known_elr": [1]}
    image = apply(image, [record(5, topic_id=ID_A, **change), record(5, topic_id=ID_B, **change)])
    assert image.topics["a"].partitions[0].elr == (2,)
    one = apply(image, [record(28, topic_name="a")])
    assert one.topics["a"].partitions[0].elr == ()
    assert one.topics["a"].partitions[0].partition_epoch == image.topics["a"].partitions[0].partition_epoch + 1
    assert one.topics["b"].partitions[0].elr == (2,)
    every = apply(image, [record(28, topic_name="")])
    assert every.topics["b"].partitions[0].last_known_elr == ()


def test_a_broker_is_registered_changed_and_unregistered() -> None:
    image = after(broker(1, 5, log_dirs=[DIR_1]))
    assert image.brokers[1].fenced
    image = apply(image, [record(17, broker_id=1, broker_epoch=5, fenced=-1)])
    assert image.brokers[1].usable
    image = apply(image, [record(17, broker_id=1, broker_epoch=5, in_controlled_shutdown=1)])
    assert not image.brokers[1].usable
    image = apply(image, [record(17, broker_id=1, broker_epoch=5, log_dirs=[DIR_2], cordoned_log_dirs=[DIR_2])])
    assert image.brokers[1].log_dirs == image.brokers[1].cordoned_log_dirs == (DIR_2,)
    image = apply(image, [record(7, id=1, epoch=5)])
    assert image.brokers[1].fenced
    image = apply(image, [record(8, id=1, epoch=5)])
    assert not image.brokers[1].fenced
    assert apply(image, [record(1, broker_id=1, broker_epoch=5)]).brokers == {}


def test_image_lists_each_fencing_of_a_broker_with_its_time_and_number_of_changed_partitions() -> None:
    up = record(17, broker_id=1, broker_epoch=5, fenced=-1)
    gone = record(17, broker_id=1, broker_epoch=5, fenced=1)
    changes = [record(5, partition_id=index, topic_id=ID_A, leader=2, isr=[2]) for index in range(2)]
    image = after(*topic("a", ID_A, 2), broker(1, 5))
    image = apply_batches(image, [(100, [up]), (200, [*changes, gone]), (300, [up]), (400, [gone])])
    assert image.changes.fencings == (Fencing(1, 5, 200, 2), Fencing(1, 5, 400, 0))
    later = apply(image, [up])
    assert later.changes.fencings == ()
    assert image.changes.then(later.changes).fencings == image.changes.fencings


def test_a_controlled_shutdown_is_not_recorded_as_a_fencing() -> None:
    up = record(17, broker_id=1, broker_epoch=5, fenced=-1)
    stopping = record(17, broker_id=1, broker_epoch=5, in_controlled_shutdown=1)
    stopped = record(17, broker_id=1, broker_epoch=5, fenced=1)
    assert after(broker(1, 5), up, stopping, stopped).changes.fencings == ()


@pytest.mark.parametrize(
    "bad",
    [
        record(9, topic_id=ID_B),
        record(5, partition_id=0, topic_id=ID_B, leader=1),
        record(5, partition_id=9, topic_id=ID_A, leader=1),
        record(2, name="a", topic_id=ID_B),
        record(17, broker_id=1, broker_epoch=99, fenced=-1),
        record(1, broker_id=4, broker_epoch=1),
        record(24),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_record_that_contradicts_the_image_raises_an_invariant_error(bad: Any) -> None:
    image = after(*topic("a", ID_A), broker(1, 5))
    with pytest.raises(InvariantError):
        apply(image, [bad])


def test_configs_can_be_set_and_removed() -> None:
    image = after(
        record(4, resource_type=2, resource_name="a", name="x", value="1"),
        record(4, resource_type=2, resource_name="a", name="y", value=""),
        record(4, resource_type=4, resource_name="", name="z", value="3"),
    )
    assert image.topic_config("a") == {"x": "1", "y": ""}
    assert image.broker_config(None) == {"z": "3"}
    image = apply(image, [record(4, resource_type=2, resource_name="a", name="x", value=None)])
    assert image.topic_config("a") == {"y": ""}
    image = apply(image, [record(4, resource_type=2, resource_name="a", name="y", value=None)])
    assert (2, "a") not in image.configs


def test_quotas_and_features_are_set_and_removed_and_producer_ids_are_set() -> None:
    both = [
        nested(14, "EntityData", entity_type="user", entity_name="u"),
        nested(14, "EntityData", entity_type="client-id", entity_name=None),
    ]
    image = after(
        record(14, entity=both, key="producer_byte_rate", value=10.0, remove=False),
        record(12, name="group.version", feature_level=1),
        record(15, broker_id=1, broker_epoch=1, next_producer_id=2000),
    )
    assert image.client_quotas == {(("client-id", None), ("user", "u")): {"producer_byte_rate": 10.0}}
    assert image.features == {"group.version": 1}
    assert image.next_producer_id == 2000
    image = apply(
        image,
        [
            record(14, entity=both, key="producer_byte_rate", value=0.0, remove=True),
            record(12, name="group.version", feature_level=0),
        ],
    )
    assert image.client_quotas == {}
    assert image.features == {}


def test_records_of_a_metadata_transaction_become_visible_only_when_the_transaction_ends() -> None:
    records = [record(23, name="t"), *topic("a", ID_A), record(24)]
    at_once = apply(EMPTY_IMAGE, records)
    step = EMPTY_IMAGE
    for one in records[:-1]:
        step = apply(step, [one])
        assert step.topics == {}
    assert apply(step, records[-1:]) == at_once
    assert apply(step, [record(25)]).topics == {}


def test_image_finds_topic_names_that_differ_only_in_dots_and_underscores() -> None:
    image = after(*topic("a.b", ID_A), *topic("a_b", ID_B))
    assert image.names_by_collision_key == {"a_b": ("a.b", "a_b")}
    assert apply(image, [record(9, topic_id=ID_A)]).names_by_collision_key == {"a_b": ("a_b",)}


def everything() -> list[Any]:
    return [
        record(12, name="metadata.version", feature_level=30),
        record(12, name="group.version", feature_level=1),
        broker(
            1,
            5,
            end_points=[nested(0, "BrokerEndpoint", name="P", host="h", port=9092, security_protocol=0)],
            features=[nested(0, "BrokerFeature", name="f", min_supported_version=0, max_supported_version=3)],
            log_dirs=[DIR_1, DIR_2],
            cordoned_log_dirs=[DIR_2],
        ),
        record(
            27,
            controller_id=1,
            incarnation_id=DIR_1,
            zk_migration_ready=False,
            end_points=[nested(27, "ControllerEndpoint", name="C", host="h", port=9093, security_protocol=0)],
            features=[nested(27, "ControllerFeature", name="f", min_supported_version=0, max_supported_version=3)],
        ),
        *topic("a.x", ID_A, 3),
        record(5, partition_id=1, topic_id=ID_A, leader=-1, isr=[1], eligible_leader_replicas=[2], last_known_elr=[1]),
        record(
            5,
            partition_id=2,
            topic_id=ID_A,
            leader=2,
            isr=[2],
            leader_recovery_state=1,
            replicas=[2, 1, 3],
            adding_replicas=[3],
            removing_replicas=[1],
            directories=[DIR_2, DIR_1, bytes(16)],
        ),
        record(4, resource_type=2, resource_name="a.x", name="retention.ms", value="5"),
        record(4, resource_type=16, resource_name="sub", name="interval.ms", value="5"),
        record(
            14, entity=[nested(14, "EntityData", entity_type="ip", entity_name=None)], key="k", value=1.5, remove=False
        ),
        record(15, broker_id=1, broker_epoch=5, next_producer_id=3000),
        record(
            18,
            id=ID_B,
            resource_type=2,
            resource_name="a",
            pattern_type=3,
            principal="User:x",
            host="*",
            operation=3,
            permission_type=3,
        ),
        record(11, name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096),
        record(
            10,
            owner="User:o",
            requester="User:r",
            renewers=["User:n"],
            issue_timestamp=1,
            max_timestamp=3,
            expiration_timestamp=2,
            token_id="t",
        ),
        record(21, zk_migration_state=0),
    ]


def test_an_image_survives_conversion_to_records_and_back() -> None:
    image = apply(EMPTY_IMAGE, everything())
    snapshot = [decode_record(encode_record(one)) for one in records_of(image)]
    assert apply(EMPTY_IMAGE, snapshot, offset=image.offset) == image


def test_access_control_records_are_applied_and_removed() -> None:
    image = apply(EMPTY_IMAGE, everything())
    image = apply(image, [record(19, id=ID_B), record(22, name="u", mechanism=1), record(26, token_id="t")])
    assert (image.acls, image.scram_credentials, image.delegation_tokens) == ({}, {}, {})


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(min_value=0, max_value=2**32), st.integers(min_value=1, max_value=40))
def test_image_is_the_same_for_any_split_of_the_records_into_batches_and_after_a_snapshot(
    seed: int, steps: int
) -> None:
    random = Random(seed)
    history = random_history(random, steps)
    whole = apply(EMPTY_IMAGE, history)
    cut = random.randint(0, len(history))
    first = apply(EMPTY_IMAGE, history[:cut])
    assert apply(first, history[cut:]) == whole
    restored = apply(EMPTY_IMAGE, records_of(first), offset=first.offset)
    assert apply(restored, history[cut:]) == whole
    one_by_one = EMPTY_IMAGE
    for one in history:
        one_by_one = apply(one_by_one, [one])
    assert one_by_one == whole


def random_history(random: Random, steps: int) -> list[Any]:
    alive: dict[bytes, int] = {}
    history: list[Any] = []
    for step in range(steps):
        choice = random.randrange(5)
        if choice == 0 or not alive:
            topic_id = random.randbytes(16)
            alive[topic_id] = random.randint(1, 3)
            history += topic(f"t.{step}", topic_id, alive[topic_id])
        elif choice == 1:
            topic_id = random.choice(sorted(alive))
            del alive[topic_id]
            history.append(record(9, topic_id=topic_id))
        elif choice == 2:
            topic_id = random.choice(sorted(alive))
            partition = random.randrange(alive[topic_id])
            history.append(record(5, partition_id=partition, topic_id=topic_id, leader=random.choice([-1, 1, 2])))
        elif choice == 3:
            value = random.choice([None, "1", "2"])
            history.append(record(4, resource_type=4, resource_name="", name=f"c{random.randrange(3)}", value=value))
        else:
            history.append(record(12, name=f"f{random.randrange(3)}", feature_level=random.randrange(3)))
    return history
