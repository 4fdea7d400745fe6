"""Tests delegation tokens with Kafka's own tool and clients, and with Penstock's command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import KafkaTool
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.testing import Broker

USERS = 'x.PlainLoginModule required username="admin" password="a" user_admin="a" user_ann="b";'
CONFIG = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "delegation.token.secret.key": "cluster-secret",
}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config=CONFIG) as node:
        yield node


def write(path: Path, mechanism: str, line: str) -> str:
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={line}\n", encoding="utf-8"
    )
    return str(path)


def ann(tmp_path: Path) -> str:
    return write(tmp_path / "ann.properties", "PLAIN", f'{PLAIN} required username="ann" password="b";')


def job(tmp_path: Path, token_id: str, mac: str) -> str:
    line = f'{SCRAM} required username="{token_id}" password="{mac}" tokenauth="true";'
    return write(tmp_path / "job.properties", "SCRAM-SHA-512", line)


@pytest.mark.java
def test_kafkas_tool_creates_a_token_and_kafkas_client_logs_in_with_the_token(
    broker: Broker, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    where = ("--bootstrap-server", broker.bootstrap, "--command-config", ann(tmp_path))
    tokens = "org.apache.kafka.tools.DelegationTokenCommand"
    made = kafka_tool(tokens, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:admin", *where)
    row = next(line for line in made.stdout.splitlines() if "User:ann" in line)
    token_id, mac = row.split()[:2]
    listed = kafka_tool(tokens, "--describe", "--owner-principal", "User:ann", *where)
    assert token_id in listed.stdout
    as_job = ("--bootstrap-server", broker.bootstrap, "--command-config", job(tmp_path, token_id, mac))
    kafka_tool("org.apache.kafka.tools.TopicCommand", "--create", "--topic", "of-a-job", *as_job)
    assert "of-a-job" in kafka_tool("org.apache.kafka.tools.TopicCommand", "--list", *as_job).stdout
    renewed = kafka_tool(tokens, "--renew", "--renew-time-period", "-1", "--hmac", mac, *where)
    assert re.search(r"renew", renewed.stdout, re.IGNORECASE)
    kafka_tool(tokens, "--expire", "--expiry-time-period", "-1", "--hmac", mac, *where)
    assert token_id not in kafka_tool(tokens, "--describe", "--owner-principal", "User:ann", *where).stdout


def test_command_line_manages_tokens_and_logs_in_with_them(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--bootstrap", broker.bootstrap, "--command-config", ann(tmp_path), "--json"]
    assert main(["token", "create", "--renewer", "User:admin", *where]) == Exit.OK
    made = json.loads(capsys.readouterr().out)
    assert made["owner"] == "User:ann"
    secret = tmp_path / "hmac"
    secret.write_text(made["hmac"] + "\n")
    assert main(["token", "renew", "--hmac-file", str(secret), *where]) == Exit.OK
    capsys.readouterr()
    assert main(["token", "list", *where]) == Exit.OK
    listed = capsys.readouterr().out
    assert made["token_id"] in listed
    assert made["hmac"] not in listed
    as_job = ["--bootstrap", broker.bootstrap, "--command-config", job(tmp_path, made["token_id"], made["hmac"])]
    assert main(["topic", "list", *as_job]) == Exit.OK
    assert main(["token", "list", *as_job]) != Exit.OK
    assert main(["token", "expire", "--hmac-file", str(secret), *where]) == Exit.OK
    assert main(["topic", "list", *as_job]) != Exit.OK
    assert main(["token", "renew", "--hmac-file", str(secret), *where]) != Exit.OK
