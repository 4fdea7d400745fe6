"""Tests broker properties, and the settings of a broker that follow from them."""

import pytest

from penstock.check import InvariantError
from penstock.metadata.configs.broker import (
    BROKER_CONFIGS,
    DYNAMIC_ONLY_CONFIGS,
    OWN_CONFIGS,
    UpdateMode,
    broker_key,
    broker_synonyms,
    update_mode,
)
from penstock.metadata.configs.definition import ConfigError, ConfigType, Importance
from penstock.metadata.configs.dynamic import validate_dynamic_settings
from penstock.metadata.configs.settings import ConfigSource, Settings
from penstock.metadata.image import MetadataImage
from penstock.protocol.vocabulary import ResourceType


def test_every_property_is_documented_and_its_default_is_valid() -> None:
    for key in [*BROKER_CONFIGS.values(), *DYNAMIC_ONLY_CONFIGS.values(), *OWN_CONFIGS.values()]:
        assert key.doc.endswith("."), key.name
        if key.default is not None:
            key.parse(key.default)


def test_every_broker_property_of_kafka_4_3_is_defined() -> None:
    assert len(BROKER_CONFIGS) == 360
    assert sum(key.internal for key in BROKER_CONFIGS.values()) == 20
    assert list(BROKER_CONFIGS) == sorted(BROKER_CONFIGS)


@pytest.mark.parametrize(
    ("name", "kind", "default", "importance", "mode"),
    [
        ("log.segment.bytes", ConfigType.INT, "1073741824", Importance.HIGH, UpdateMode.CLUSTER_WIDE),
        ("listeners", ConfigType.LIST, "PLAINTEXT://:9092", Importance.HIGH, UpdateMode.PER_BROKER),
        ("node.id", ConfigType.INT, None, Importance.HIGH, UpdateMode.READ_ONLY),
        ("ssl.keystore.password", ConfigType.PASSWORD, None, Importance.MEDIUM, UpdateMode.PER_BROKER),
        ("offsets.topic.replication.factor", ConfigType.SHORT, "3", Importance.HIGH, UpdateMode.READ_ONLY),
        ("quota.window.num", ConfigType.INT, "11", Importance.LOW, UpdateMode.READ_ONLY),
        ("controller.quorum.voters", ConfigType.LIST, "", Importance.HIGH, UpdateMode.READ_ONLY),
        ("group.consumer.assignors", ConfigType.LIST, "uniform,range", Importance.MEDIUM, UpdateMode.READ_ONLY),
    ],
)
def test_properties_have_the_types_and_defaults_of_kafka_4_3(
    name: str, kind: ConfigType, default: str | None, importance: Importance, mode: UpdateMode
) -> None:
    key = BROKER_CONFIGS[name]
    assert (key.type, key.default, key.importance, update_mode(name)) == (kind, default, importance, mode)


def test_property_with_a_listener_prefix_overrides_the_setting_for_that_listener() -> None:
    name = "listener.name.internal.ssl.keystore.password"
    assert broker_key(name) is BROKER_CONFIGS["ssl.keystore.password"]
    assert broker_synonyms(name) == (name, "ssl.keystore.password")
    assert update_mode(name) is UpdateMode.PER_BROKER
    assert update_mode("listener.name.internal.max.connections") is UpdateMode.CLUSTER_WIDE
    assert broker_key("listener.name.internal.plain.sasl.jaas.config") is BROKER_CONFIGS["sasl.jaas.config"]
    settings = Settings({"max.connections": "5", "listener.name.internal.max.connections": "3"})
    assert settings.int("listener.name.internal.max.connections") == 3
    assert settings.int("listener.name.external.max.connections") == 5


def test_settings_are_read_as_typed_values() -> None:
    settings = Settings({"broker.rack": "r1", "log.dirs": "/a, /b", "log.cleaner.min.cleanable.ratio": "1"})
    assert settings.int("num.partitions") == 1
    assert settings.bool("auto.create.topics.enable") is True
    assert settings.float("log.cleaner.min.cleanable.ratio") == 1.0
    assert settings.str("broker.rack") == "r1"
    assert settings.list("log.dirs") == settings.log_dirs == ("/a", "/b")
    assert settings.list("advertised.listeners") == ()
    assert settings.optional_str("metadata.log.dir") is None
    assert settings.optional_int("log.retention.ms") is None


def test_reading_a_setting_with_a_wrong_type_or_name_raises_an_invariant_error() -> None:
    settings = Settings()
    for ask in (
        lambda: settings.int("listeners"),
        lambda: settings.str("num.partitions"),
        lambda: settings.bool("num.partitions"),
        lambda: settings.int("auto.create.topics.enable"),
        lambda: settings.int("no.such.property"),
        lambda: settings.str("metadata.log.dir"),
    ):
        with pytest.raises(InvariantError):
            ask()


def test_log_dirs_overrides_log_dir() -> None:
    assert Settings().log_dirs == ("/tmp/kafka-logs",)
    assert Settings({"log.dir": "/one"}).log_dirs == ("/one",)
    assert Settings({"log.dir": "/one", "log.dirs": "/a,/b"}).log_dirs == ("/a", "/b")


def test_node_id_and_broker_id_are_accepted_and_must_be_equal() -> None:
    assert Settings({"broker.id": "7"}).node_id == Settings({"node.id": "7"}).node_id == 7
    assert Settings({"node.id": "7"}).int("broker.id") == 7
    with pytest.raises(ConfigError, match=r"node\.id"):
        Settings({"broker.id": "7", "node.id": "8"})


def test_cordoned_log_dirs_must_be_log_directories_of_the_broker_or_a_star() -> None:
    dirs = {"log.dirs": "/a,/b/"}
    assert Settings(dirs).cordoned_log_dirs() == frozenset()
    assert Settings({**dirs, "cordoned.log.dirs": "/b"}).cordoned_log_dirs() == {"/b"}
    assert Settings({**dirs, "cordoned.log.dirs": "*"}).cordoned_log_dirs() == {"/a", "/b"}
    with pytest.raises(ConfigError, match=r"/c is not one of log\.dirs"):
        Settings({**dirs, "cordoned.log.dirs": "/a,/c"})
    with pytest.raises(ConfigError, match=r"give \* alone"):
        Settings({**dirs, "cordoned.log.dirs": "/a, *"})


def test_invalid_value_in_the_properties_file_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        Settings({"num.partitions": "many"})
    with pytest.raises(ConfigError, match=r"host:count"):
        Settings({"max.connections.per.ip.overrides": "zzz"})
    with pytest.raises(ConfigError, match=r"refuses every connection"):
        Settings({"max.connections.per.ip": "0"})
    Settings({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:5"})


def test_connection_limits_of_single_hosts_are_parsed() -> None:
    settings = Settings({"max.connections.per.ip.overrides": "10.0.0.1:5, ::1:7,"})
    assert settings.max_connections_per_ip_overrides() == {"10.0.0.1": 5, "::1": 7}
    spelled = Settings(
        {"max.connections.per.ip.overrides": "0:0:0:0:0:0:0:1:5,[2001:DB8::0:2]:6,::ffff:10.0.0.1:7,host:8"}
    )
    assert spelled.max_connections_per_ip_overrides() == {"::1": 5, "2001:db8::2": 6, "10.0.0.1": 7, "host": 8}


def test_dynamic_configs_override_the_file_and_per_broker_configs_override_cluster_wide_configs() -> None:
    settings = Settings({"node.id": "1", "message.max.bytes": "1000"})
    assert settings.log_defaults().max_message_bytes == 1000
    changed = settings.apply_dynamic({"message.max.bytes": "2000", "max.connections": "9"}, {})
    assert changed == {"message.max.bytes", "max.connections"}
    assert settings.log_defaults().max_message_bytes == 2000
    settings.apply_dynamic({"message.max.bytes": "2000"}, {"message.max.bytes": "3000"})
    assert settings.int("message.max.bytes") == 3000
    assert settings.apply_dynamic({}, {}) == {"message.max.bytes"}
    assert settings.int("message.max.bytes") == 1000


def test_broker_reads_its_dynamic_settings_from_the_metadata_image() -> None:
    settings = Settings({"node.id": "4"})
    image = MetadataImage(
        configs={
            (ResourceType.BROKER, ""): {"max.connections": "10"},
            (ResourceType.BROKER, "4"): {"max.connections.per.ip": "2"},
            (ResourceType.BROKER, "5"): {"max.connections.per.ip": "3"},
        }
    )
    settings.apply_image(image)
    assert (settings.int("max.connections"), settings.int("max.connections.per.ip")) == (10, 2)


def test_invalid_dynamic_configs_are_ignored() -> None:
    settings = Settings({"node.id": "1"})
    settings.apply_dynamic({"node.id": "9", "max.connections": "x", "listeners": "PLAINTEXT://:1"}, {})
    assert settings.node_id == 1
    assert settings.list("listeners") == ("PLAINTEXT://:9092",)
    assert settings.int("max.connections") == 2**31 - 1


def test_synonyms_of_a_property_are_listed_in_the_order_of_lookup() -> None:
    settings = Settings({"log.retention.hours": "24"})
    assert settings.synonyms("log.retention.ms") == []
    settings.apply_dynamic({"log.retention.ms": "5"}, {"log.retention.ms": "6"})
    assert [(each.name, each.value, each.source) for each in settings.synonyms("log.retention.ms")] == [
        ("log.retention.ms", "6", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "5", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.hours", "24", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]


@pytest.mark.parametrize(
    ("values", "per_broker", "message"),
    [
        (
            {"node.id": "5", "broker.rack": "x"},
            True,
            "A running broker can't change [broker.rack, node.id]: set them in its properties file and restart it.",
        ),
        (
            {"listeners": "PLAINTEXT://:1"},
            True,
            "A running broker can't change [listeners]: set them in its properties file and restart it.",
        ),
        (
            {"principal.builder.class": "x"},
            False,
            "A running broker can't change [principal.builder.class]: set them in its properties file and restart it.",
        ),
        (
            {"ssl.key.password": "x"},
            False,
            "TLS settings are changed for one listener at a time: put the listener's prefix before [ssl.key.password]",
        ),
        (
            {"num.io.threads": "0"},
            True,
            "num.io.threads can't be '0': give 1 or more.",
        ),
        (
            {"leader.replication.throttled.rate": "-1"},
            False,
            "leader.replication.throttled.rate can't be '-1': give 0 or more.",
        ),
    ],
)
def test_settings_that_cannot_change_on_a_running_broker_are_refused(
    values: dict[str, str], per_broker: bool, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_dynamic_settings(values, per_broker=per_broker)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("values", "per_broker"),
    [
        ({"num.io.threads": "4"}, True),
        ({"num.io.threads": "4"}, False),
        ({"no.such.property": "x"}, False),
        ({"listener.name.plaintext.max.connections": "5"}, False),
    ],
)
def test_settings_that_can_change_on_a_running_broker_are_accepted(values: dict[str, str], per_broker: bool) -> None:
    validate_dynamic_settings(values, per_broker=per_broker)
