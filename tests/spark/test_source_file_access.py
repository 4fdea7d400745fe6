"""Spark and the pipelines of the command line, with a broker that has users and an authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.cli.pipeline_session import topic_options
from penstock.client.connection import ConnectionSettings
from penstock.client.login import Login
from penstock.client.sync import Client
from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation, PatternType, Permission
from penstock.spark.brokers import connect
from penstock.spark.errors import SourceError
from penstock.spark.options import SourceOptions, parse_options
from penstock.spark.planner import FileHint, Planner
from penstock.testing import Broker

JAAS = 'x required username="admin" password="a" user_admin="a" user_ann="b";'
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Runs a broker on which ann may list log directories, may read the topic open, and may only describe secret."""
    granted = [
        (Operation.DESCRIBE, AclResource.CLUSTER, CLUSTER_NAME),
        (Operation.DESCRIBE, AclResource.TOPIC, "secret"),
        (Operation.READ, AclResource.TOPIC, "open"),
    ]
    creations = [
        AclCreation(
            resource_type=resource,
            resource_name=name,
            resource_pattern_type=PatternType.LITERAL,
            principal="User:ann",
            host="*",
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        for operation, resource, name in granted
    ]
    with Broker(data=tmp_path_factory.mktemp("broker"), config=SECURED) as made:
        login = ConnectionSettings(login=Login("PLAIN", "admin", "a"))
        with Client(made.bootstrap, settings=login) as client:
            client.create_topic("open", 1)
            client.create_topic("secret", 1)
            answer = client.request(CreateAclsRequest(creations=creations))
            assert [each.error_code for each in answer.results] == [0, 0, 0]
        yield made


def options(broker: Broker, topic: str, read_mode: str) -> SourceOptions:
    return parse_options(
        {
            "kafka.bootstrap.servers": broker.bootstrap,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": 'x required username="ann" password="b";',
            "subscribe": topic,
            "read.mode": read_mode,
        }
    )


def hints(broker: Broker, topic: str, read_mode: str) -> dict[tuple[str, int], FileHint]:
    wanted = options(broker, topic, read_mode)
    with connect(wanted) as client:
        planner = Planner(client, wanted)
        return planner.file_hints(planner.partitions())


def test_files_of_a_topic_are_read_by_a_user_with_read_on_the_topic(broker: Broker) -> None:
    assert list(hints(broker, "open", "auto")) == [("open", 0)]
    assert list(hints(broker, "open,secret", "auto")) == [("open", 0)]
    assert list(hints(broker, "open", "files")) == [("open", 0)]


def test_files_of_a_topic_are_not_read_by_a_user_who_may_only_describe_it(broker: Broker) -> None:
    assert hints(broker, "secret", "auto") == {}
    with pytest.raises(SourceError, match="has no READ permission on secret"):
        hints(broker, "secret", "files")


@pytest.fixture
def client_file(tmp_path: Path) -> str:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=admin\nsasl.password=a\nacks=all\n"
    )
    return str(path)


def test_pipeline_logs_in_with_the_properties_of_its_command_config_file(
    broker: Broker, client_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", "table", "missing", str(tmp_path / "table"), "--bootstrap", broker.bootstrap]
    assert main([*words, "--command-config", client_file]) == Exit.NOT_FOUND
    assert "missing" in capsys.readouterr().err


def test_mirror_logs_in_to_both_clusters_with_their_own_files(
    broker: Broker, client_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--from", broker.bootstrap, "--bootstrap", broker.bootstrap, "--checkpoint", str(tmp_path / "at")]
    files = ["--from-config", client_file, "--command-config", client_file]
    assert main(["pipeline", "mirror", "open", *where, *files]) == Exit.USAGE
    assert "are the same cluster" in capsys.readouterr().err


def test_option_of_a_pipeline_overrides_the_property_of_its_file(client_file: str) -> None:
    found = topic_options(client_file, ["kafka.sasl.username=ann", "read.mode=wire"])
    assert found == {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password": "a",
        "read.mode": "wire",
    }
