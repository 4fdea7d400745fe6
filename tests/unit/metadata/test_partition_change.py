"""Tests changes of one partition's leader, ISR, eligible leaders and replicas."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.assignments import DIRECTORIES_SINCE
from penstock.metadata.controller.broker_states import after_unclean_shutdown
from penstock.metadata.controller.partition_change import Change, Election, Rules, leader_and_isr_changes
from penstock.metadata.image import (
    EMPTY_IMAGE,
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)

ID = bytes([1] * 16)
DISK, OTHER_DISK = bytes([7] * 16), bytes([8] * 16)
ELR = {"metadata.version": 30, "eligible.leader.replicas.version": 1}
NO_ELR = {"metadata.version": 30}


def image_of(partition: PartitionImage, brokers: str = "1234", min_isr: int = 2, **fields: Any) -> MetadataImage:
    """Returns an image with brokers by digit; `!` after a broker means fenced, `~` shutting down."""
    registered = {}
    for digit, mark in zip(brokers, brokers[1:] + " ", strict=True):
        if digit.isdigit():
            registered[int(digit)] = BrokerImage(
                int(digit), 5, bytes(16), {}, fenced=mark == "!", in_controlled_shutdown=mark == "~"
            )
    topic = TopicImage("t", ID, {0: partition})
    fields.setdefault("features", ELR)
    return replace(
        EMPTY_IMAGE,
        brokers=registered,
        topics={"t": topic},
        topics_by_id={ID: topic},
        partition_count=1,
        configs={(2, "t"): {"min.insync.replicas": str(min_isr)}},
        **fields,
    )


def partition(replicas: str, isr: str | None = None, leader: int = -2, **fields: Any) -> PartitionImage:
    ids = tuple(map(int, replicas))
    in_sync = ids if isr is None else tuple(map(int, isr))
    return PartitionImage(replicas=ids, isr=in_sync, leader=ids[0] if leader == -2 else leader, **fields)


def changed(image: MetadataImage, **wishes: Any) -> PartitionImage:
    record = Change(image, image.topics["t"], 0, **wishes).record()
    return image.topics["t"].partitions[0] if record is None else apply(image, [record]).topics["t"].partitions[0]


def summary(one: PartitionImage) -> str:
    """Returns the text `leader isr/eligible/last known`."""
    parts = "/".join("".join(map(str, ids)) for ids in (one.isr, one.elr, one.last_known_elr))
    return f"{'-' if one.leader < 0 else one.leader} {parts}"


# --- a broker leaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "leaving", "expected"),
    [
        (partition("123"), 1, "2 23//"),
        (partition("123"), 3, "1 12//"),
        (partition("123", "23", 2), 2, "3 3/2/"),
        (partition("143", "3", 3, elr=(1,)), 3, "1 1/3/"),
        (partition("123", "12"), 3, "1 12//"),
        (partition("1"), 1, "- /1/1"),
        (partition("253", "3", 3, elr=(5,)), 3, "- /53/3"),
        (partition("321"), 3, "2 21//"),
    ],
    ids=["leader", "follower", "below min", "last", "not in sync", "alone", "nobody", "order of replicas"],
)
def test_leaving_broker_loses_its_leaderships_and_leaves_its_isrs(
    before: PartitionImage, leaving: int, expected: str
) -> None:
    image = image_of(before, min_isr=2)
    records = leader_and_isr_changes(image, Rules(), [(image.topics["t"], 0)], leaving=leaving)
    assert summary(apply(image, records).topics["t"].partitions[0]) == expected


@pytest.mark.parametrize(
    ("before", "leaving", "expected"),
    [(partition("123", "12"), 1, "2 2//"), (partition("123", "1"), 1, "- 1//"), (partition("1"), 1, "- 1//")],
)
def test_last_in_sync_replica_stays_in_the_isr_if_eligible_leader_replicas_are_disabled(
    before: PartitionImage, leaving: int, expected: str
) -> None:
    image = image_of(before, features=NO_ELR)
    records = leader_and_isr_changes(image, Rules(), [(image.topics["t"], 0)], leaving=leaving)
    assert summary(apply(image, records).topics["t"].partitions[0]) == expected


def test_only_live_brokers_that_are_not_shutting_down_are_elected() -> None:
    image = image_of(partition("1234"), brokers="12!3~4")
    records = leader_and_isr_changes(image, Rules(), [(image.topics["t"], 0)], leaving=1)
    assert apply(image, records).topics["t"].partitions[0].leader == 4


def test_partition_with_an_eligible_leader_has_no_last_known_leader() -> None:
    image = image_of(partition("12", "1", -1))
    records = leader_and_isr_changes(image, Rules(), [(image.topics["t"], 0)], leaving=1)
    assert summary(apply(image, records).topics["t"].partitions[0]) == "- /1/"


def test_partition_change_record_of_an_old_metadata_version_has_no_directories() -> None:
    image = image_of(partition("12"), features={"metadata.version": DIRECTORIES_SINCE - 1})
    record = Change(image, image.topics["t"], 0, replicas=[1, 2, 3], adding=[3]).record()
    assert record is not None
    assert (record.replicas, record.directories) == ([1, 2, 3], None)


# --- a broker returns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "coming", "expected"),
    [
        (partition("123", "", -1, elr=(2, 3), last_known_elr=(3,)), 2, "2 2/3/"),
        (partition("123", "", -1, elr=(3,), last_known_elr=(3,)), 2, "- /3/3"),
        (partition("123", "", -1, last_known_elr=(3,)), 2, "- //3"),
        (partition("123", "", -1, last_known_elr=(3,)), 3, "3 3//"),
        (partition("123", "", -1, last_known_elr=(2, 3)), 3, "- //23"),
        (partition("123", "1", -1), 1, "1 1//"),
    ],
    ids=["eligible", "not eligible", "not the last leader", "the last leader", "no one last leader", "in sync"],
)
def test_returning_broker_leads_a_leaderless_partition_if_it_is_eligible_or_was_its_last_leader(
    before: PartitionImage, coming: int, expected: str
) -> None:
    image = image_of(before, brokers="1!2!3!4!")
    records = leader_and_isr_changes(image, Rules(), [(image.topics["t"], 0)], coming=coming)
    assert summary(apply(image, records).topics["t"].partitions[0]) == expected


def test_electing_the_last_known_leader_marks_the_partition_as_recovering() -> None:
    image = image_of(partition("123", "", -1, last_known_elr=(3,)), brokers="1!2!3!")
    records = leader_and_isr_changes(image, Rules(), [(image.topics["t"], 0)], coming=3)
    assert apply(image, records).topics["t"].partitions[0].leader_recovery_state == 1


@pytest.mark.parametrize(
    ("before", "lossy", "expected"),
    [
        (partition("123"), 1, "2 23//"),
        (partition("123", "23", 2), 2, "3 3//"),
        (partition("123", "3", 3, elr=(2,)), 2, "3 3//"),
        (partition("123", "", -1, elr=(2, 3), last_known_elr=(3,)), 3, "2 2//"),
        (partition("1"), 1, "- //1"),
        (partition("1", "1", -1), 1, "- //1"),
    ],
    ids=["in sync", "below min", "eligible", "leaves another", "alone", "leaderless since before"],
)
def test_a_replica_that_may_have_lost_records_is_neither_in_sync_nor_eligible(
    before: PartitionImage, lossy: int, expected: str
) -> None:
    image = image_of(before)
    records = leader_and_isr_changes(image, Rules(), [(image.topics["t"], 0)], unclean_shutdown=lossy)
    assert summary(apply(image, records).topics["t"].partitions[0]) == expected


@pytest.mark.parametrize(
    ("before", "brokers", "expected"),
    [
        ("123", "123", "3 3//"),
        ("123", "123!", "- //3"),
        ("132", "13!2", "- //1"),
        ("2", "2", "2 2//"),
    ],
    ids=["the next one leads", "is waited for", "after the last the first", "nobody else"],
)
def test_partition_chooses_another_replica_if_its_last_known_leader_lost_its_directory(
    before: str, brokers: str, expected: str
) -> None:
    directories = tuple(OTHER_DISK if each == "2" else DISK for each in before)
    last_known = partition(before, "", -1, last_known_elr=(2,), directories=directories)
    image = image_of(last_known, brokers.replace("1", "1!") if expected.endswith("1") else brokers)
    image = replace(image, brokers={each: replace(one, log_dirs=(DISK,)) for each, one in image.brokers.items()})
    assert summary(changed(image)) == "- //2"
    assert summary(changed(image, directories={2: DISK})) == expected


def test_rules_use_the_config_of_the_topic_then_of_the_node_then_of_the_cluster_then_the_static_value() -> None:
    spellings = (None, "true", " True ", "FALSE", "false ")
    for topic, node, cluster, static in product(spellings, spellings, spellings, (False, True)):
        sources = (((2, "t"), topic), ((4, "9"), node), ((4, ""), cluster))
        configs = {key: {"unclean.leader.election.enable": value} for key, value in sources if value is not None}
        image = replace(image_of(partition("123")), configs=configs)
        first = next((value for _, value in sources if value is not None), str(static))
        rules = Rules(unclean_leader_election=static, node_id=9)
        assert rules.allows_unclean(image, "t") == (first.strip().lower() == "true"), (topic, node, cluster, static)
    for topic, node, cluster, least in product((None, "1", "2", "5"), (None, "1", "2"), (None, "1", "3"), (1, 2, 4)):
        sources = (((2, "t"), topic), ((4, "9"), node), ((4, ""), cluster))
        configs = {key: {"min.insync.replicas": value} for key, value in sources if value is not None}
        image = replace(image_of(partition("123")), configs=configs)
        first = next((value for _, value in sources if value is not None), str(least))
        needed = Rules(min_insync_replicas=least, node_id=9).min_isr(image, image.topics["t"])
        assert needed == min(int(first), 3), (topic, node, cluster, least)


@pytest.mark.parametrize(
    ("configs", "static", "survives"),
    [
        ({}, False, False),
        ({}, True, True),
        ({(2, "t"): {"flush.messages": "1"}}, False, True),
        ({(2, "t"): {"flush.messages": "100"}}, True, False),
        ({(2, "t"): {"flush.messages": "100", "penstock.acks.fsync": "true"}}, False, True),
        ({(4, ""): {"log.flush.interval.messages": "1"}}, False, True),
        ({(4, ""): {"log.flush.interval.messages": "1"}, (4, "2"): {"log.flush.interval.messages": "9"}}, True, False),
    ],
)
def test_a_replica_that_acknowledges_after_fsync_stays_eligible_after_a_power_loss(
    configs: dict[tuple[int, str], dict[str, str]], static: bool, survives: bool
) -> None:
    image = replace(image_of(partition("123", "2", 2, elr=(3,), directories=(DISK,) * 3)), configs=configs)
    rules = Rules(min_insync_replicas=2, syncs_before_acks=static)
    assert rules.survives_power_loss(image, "t", 2) == survives

    def left(directory: bytes, synced: set[tuple[bytes, int]]) -> str:
        records = after_unclean_shutdown(image, 2, rules, [directory], synced)
        return summary(apply(image, records).topics["t"].partitions[0])

    this = {(image.topics["t"].topic_id, 0)}
    assert left(DISK, this) == ("3 3/2/" if survives else "3 3//")
    assert left(OTHER_DISK, this) == "3 3//"
    assert left(DISK, set()) == "3 3//"  # in sync with more records than on disk, before the topic required fsync


# --- eligible leaders -----------------------------------------------------------------------------------


def test_eligible_leaders_are_cleared_when_enough_replicas_are_in_sync() -> None:
    image = image_of(partition("123", "1", elr=(2, 3)))
    assert summary(changed(image, isr=[1, 2])) == "1 12//"


def test_min_isr_is_limited_to_the_number_of_replicas() -> None:
    image = image_of(partition("12", "12"), min_isr=3)
    assert summary(changed(image, isr=[1])) == "1 1/2/"
    assert summary(changed(image_of(partition("12", "1", elr=(2,)), min_isr=3), isr=[1, 2])) == "1 12//"


@pytest.mark.parametrize(
    ("configs", "static", "expected"),
    [({}, 3, 3), ({(4, ""): "2"}, 3, 2), ({(4, ""): "2", (4, "9"): "1"}, 3, 1), ({(2, "t"): "3", (4, ""): "2"}, 1, 3)],
)
def test_min_isr_is_looked_up_in_the_topic_then_in_dynamic_configs_then_in_the_file(
    configs: dict[tuple[int, str], str], static: int, expected: int
) -> None:
    image = image_of(partition("1234"))
    image = replace(image, configs={key: {"min.insync.replicas": value} for key, value in configs.items()})
    assert Rules(min_insync_replicas=static, node_id=9).min_isr(image, image.topics["t"]) == expected


# --- elections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "brokers", "election", "expected"),
    [
        (partition("123", leader=2), "123", Election.PREFERRED, "1 123//"),
        (partition("123", "23", 2), "123", Election.PREFERRED, "2 23//"),
        (partition("123", leader=2), "1!23", Election.PREFERRED, "2 123//"),
        (partition("123", "", -1, elr=(2,), last_known_elr=(2,)), "123", Election.PREFERRED, "2 2//"),
        (partition("123", "", -1, elr=(2,), last_known_elr=(2,)), "12!3", Election.ONLINE, "- /2/2"),
        (partition("123", "", -1, elr=(2,), last_known_elr=(2,)), "12!3", Election.UNCLEAN, "1 1//"),
        (partition("123", "", -1, elr=(2,), last_known_elr=(2,)), "1!2!3!", Election.UNCLEAN, "- /2/2"),
        (partition("123", "3", 3), "123", Election.UNCLEAN, "3 3//"),
    ],
)
def test_preferred_election_elects_no_replica_that_lacks_records_but_unclean_election_may(
    before: PartitionImage, brokers: str, election: Election, expected: str
) -> None:
    image = image_of(before, brokers, min_isr=1)
    assert summary(changed(image, election=election)) == expected


def test_an_unchanged_partition_gets_no_record() -> None:
    image = image_of(partition("123"))
    for election in Election:
        assert Change(image, image.topics["t"], 0, election=election).record() is None


def test_a_replica_in_a_failed_directory_is_not_elected() -> None:
    for directory, leads in [(DISK, True), (OTHER_DISK, False), (LOST_DIRECTORY, False), (UNASSIGNED_DIRECTORY, True)]:
        before = partition("12", "2", -1, directories=(DISK, directory))
        image = image_of(before, min_isr=1)
        brokers = {each: replace(one, log_dirs=(DISK,)) for each, one in image.brokers.items()}
        assert changed(replace(image, brokers=brokers)).leader == (2 if leads else -1)


# --- epochs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "wishes", "epochs"),
    [
        (ELR, {"isr": [1, 2]}, (0, 1)),
        ({"metadata.version": 11}, {"isr": [1, 2]}, (1, 1)),
        ({"metadata.version": 11}, {"isr": [1, 2, 3, 4]}, (0, 1)),
        (ELR, {"replicas": [1, 2, 3], "isr": [1, 2, 3]}, (1, 1)),
        (ELR, {"replicas": [4, 1, 2, 3]}, (0, 1)),
        (ELR, {}, (0, 0)),
    ],
    ids=["smaller ISR", "smaller ISR in old clusters", "larger ISR", "fewer replicas", "another order", "nothing"],
)
def test_leader_epoch_rises_if_a_replica_is_removed_or_if_the_isr_shrinks_in_an_old_metadata_version(
    features: dict[str, int], wishes: dict[str, Any], epochs: tuple[int, int]
) -> None:
    before = partition("1234", "123" if wishes.get("isr") == [1, 2, 3, 4] else None)
    after = changed(image_of(before, features=features), **wishes)
    assert (after.leader_epoch, after.partition_epoch) == epochs


# --- reassignments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "isr", "replicas", "expected"),
    [
        (partition("312", "12", 1, adding_replicas=(3,), removing_replicas=(1,)), [1, 2], "312", "1 12//"),
        (partition("312", "12", 1, adding_replicas=(3,), removing_replicas=(1,)), [1, 2, 3], "32", "3 23//"),
        (partition("3412", "12", 1, adding_replicas=(3, 4), removing_replicas=(1, 2)), [1, 2, 3], "3412", "1 123//"),
        (partition("3412", "123", 1, adding_replicas=(3, 4), removing_replicas=(1, 2)), [1, 3, 4], "34", "3 34//"),
    ],
    ids=["waits", "completes", "waits for all", "moves everything"],
)
def test_a_reassignment_completes_when_all_remaining_replicas_are_in_sync(
    before: PartitionImage, isr: list[int], replicas: str, expected: str
) -> None:
    after = changed(image_of(before), isr=isr)
    assert ("".join(map(str, after.replicas)), summary(after)) == (replicas, expected)
    done = replicas == "".join(str(each) for each in before.replicas if each not in before.removing_replicas)
    assert bool(after.adding_replicas or after.removing_replicas) != done


def test_added_replicas_get_a_directory_of_their_broker_and_existing_replicas_keep_their_directory() -> None:
    image = image_of(partition("12", directories=(DISK, OTHER_DISK)))
    brokers = dict(image.brokers)
    brokers[3] = replace(brokers[3], log_dirs=(DISK,))
    brokers[4] = replace(brokers[4], log_dirs=(DISK, OTHER_DISK))
    after = changed(replace(image, brokers=brokers), replicas=[3, 4, 2, 1], adding=[3, 4])
    assert after.directories == (DISK, UNASSIGNED_DIRECTORY, OTHER_DISK, DISK)


def test_partition_change_with_an_unchanged_recovery_state_writes_no_record() -> None:
    image = image_of(partition("123"))
    assert Change(image, image.topics["t"], 0, recovery_state=0).record() is None
