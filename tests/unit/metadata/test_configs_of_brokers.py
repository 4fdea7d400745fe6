"""Tests which settings of brokers the controller accepts: thread pools, connection limits, cordoned directories."""

from dataclasses import replace

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.configs.settings import Settings
from penstock.metadata.controller.configs import alter_configs, incremental_alter_configs, refused_resources
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_33_alter_configs as legacy
from penstock.protocol.messages import api_44_incremental_alter_configs as incremental
from penstock.protocol.vocabulary import ResourceType

BROKER = ResourceType.BROKER
THREAD_POOLS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
#: Settings of node 1, which is the active controller.
OWN = {"node.id": "1", "log.dirs": "/a,/b"}


def image_with(**fields: object) -> MetadataImage:
    brokers = {node_id: BrokerImage(node_id, 5, bytes(16), {}, fenced=False) for node_id in (1, 2)}
    return replace(EMPTY_IMAGE, brokers=brokers, **fields)  # type: ignore[arg-type]


def codes_of(image: MetadataImage, settings: Settings, broker: str, configs: dict[str, str]) -> set[ErrorCode]:
    """Returns the codes of IncrementalAlterConfigs and AlterConfigs for the same settings of a broker, which has no
    other settings."""
    changes = [incremental.AlterableConfig(name=name, value=value) for name, value in configs.items()]
    change = incremental.AlterConfigsResource(resource_type=BROKER, resource_name=broker, configs=changes)
    request = incremental.IncrementalAlterConfigsRequest(resources=[change])
    [changed] = incremental_alter_configs(
        image, request, settings, refused_resources(request.resources)
    ).reply.responses
    values = [legacy.AlterableConfig(name=name, value=value) for name, value in configs.items()]
    whole = legacy.AlterConfigsResource(resource_type=BROKER, resource_name=broker, configs=values)
    [replaced] = alter_configs(image, legacy.AlterConfigsRequest(resources=[whole]), settings).reply.responses
    return {ErrorCode(changed.error_code), ErrorCode(replaced.error_code)}


@pytest.mark.parametrize("pool", THREAD_POOLS)
@pytest.mark.parametrize("broker", ["", "1"])
def test_one_change_at_most_doubles_or_halves_a_thread_pool(pool: str, broker: str) -> None:
    settings = Settings({**OWN, pool: "6"})
    for size in range(1, 20):
        code = ErrorCode.NONE if 3 <= size <= 12 else ErrorCode.INVALID_REQUEST
        assert codes_of(image_with(), settings, broker, {pool: str(size)}) == {code}, size


def test_connection_limit_of_zero_is_accepted_if_the_properties_of_the_controller_have_overrides() -> None:
    limit = {"max.connections.per.ip": "0"}
    overrides = {"max.connections.per.ip.overrides": "127.0.0.1:100"}
    assert codes_of(image_with(), Settings(OWN), "", limit) == {ErrorCode.INVALID_REQUEST}
    assert codes_of(image_with(), Settings({**OWN, **overrides}), "", limit) == {ErrorCode.NONE}
    assert codes_of(image_with(), Settings(OWN), "", {**limit, **overrides}) == {ErrorCode.NONE}


@pytest.mark.parametrize("directory", ["/a", "/b", "*", "/elsewhere"])
def test_controller_checks_the_cordoned_directories_of_its_own_node_only(directory: str) -> None:
    cordoned = {"cordoned.log.dirs": directory}
    own = ErrorCode.INVALID_REQUEST if directory == "/elsewhere" else ErrorCode.NONE
    assert codes_of(image_with(), Settings(OWN), "1", cordoned) == {own}
    assert codes_of(image_with(), Settings(OWN), "2", cordoned) == {ErrorCode.NONE}


@pytest.mark.parametrize("least_of_the_controller", [None, "1", "3"])
def test_lower_cluster_wide_min_isr_clears_no_eligible_leaders_while_the_controller_has_its_own_higher_value(
    least_of_the_controller: str | None,
) -> None:
    # The controller's own value was set before eligible leader replicas were enabled.
    topic = TopicImage("t", b"t" * 16, {0: PartitionImage((1, 2, 3), (1,), 1, elr=(2,))})
    configs = {(int(BROKER), ""): {"min.insync.replicas": "2"}}
    if least_of_the_controller is not None:
        configs[int(BROKER), "1"] = {"min.insync.replicas": least_of_the_controller}
    image = image_with(
        topics={"t": topic},
        topics_by_id={topic.topic_id: topic},
        configs=configs,
        features={"eligible.leader.replicas.version": 1},
    )
    lower = incremental.AlterableConfig(name="min.insync.replicas", value="1")
    change = incremental.AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[lower])
    request = incremental.IncrementalAlterConfigsRequest(resources=[change])
    decision = incremental_alter_configs(image, request, Settings(OWN), {})
    after = apply(image, decision.records)
    assert after.config(BROKER, "") == {"min.insync.replicas": "1"}
    assert after.topics["t"].partitions[0].elr == ((2,) if least_of_the_controller == "3" else ())
