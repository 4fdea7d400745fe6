"""Tests the certificates and users of `penstock up --secure`, and the warning about listeners without TLS."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.metadata.configs.settings import Settings
from penstock.net.tls import check_trust, client_context, read_file, read_material, server_context
from penstock.node.listeners import exposed_listeners, plan_listeners
from penstock.node.local_security import local_security, write_client_files


def test_local_security_files_are_created_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    directory = str(tmp_path / "made" / "security")
    first = local_security(directory, "127.0.0.1")
    write_client_files(directory, first, "127.0.0.1:1")
    files = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path(directory).iterdir()} == {0o600}
    assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700
    again = local_security(directory, "127.0.0.1")
    assert again == first
    assert {path.name: path.read_bytes() for path in Path(directory).iterdir()} == files
    assert len(set(first.passwords.values())) == 3
    assert min(map(len, first.passwords.values())) >= 32


def test_nodes_with_the_generated_certificates_accept_connections_from_each_other(tmp_path: Path) -> None:
    made = local_security(str(tmp_path), "127.0.0.1").properties()
    properties = {name: value for name, value in made.items() if name.startswith("ssl.")}
    material = read_material(properties, read_file)
    check_trust(server_context(properties, material), client_context(properties, material))


@pytest.mark.parametrize("change", ["another host", "it expires soon"])
def test_new_node_certificate_is_signed_by_the_existing_certificate_authority(tmp_path: Path, change: str) -> None:
    now = datetime.now(UTC)
    before = local_security(str(tmp_path), "127.0.0.1", now)
    key, ca = (Path(path).read_bytes() for path in (before.key_store, before.ca))
    host = "broker.example.org" if change == "another host" else "127.0.0.1"
    local_security(str(tmp_path), host, now if change == "another host" else now + timedelta(days=790))
    assert Path(before.key_store).read_bytes() != key
    assert Path(before.ca).read_bytes() == ca


@pytest.mark.parametrize(
    ("listeners", "allowed", "warned"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "false", 0),
        ("PLAINTEXT://localhost:9092", "false", 0),
        ("PLAINTEXT://[::1]:9092", "false", 0),
        ("PLAINTEXT://:9092", "false", 1),
        ("PLAINTEXT://0.0.0.0:9092,SASL_PLAINTEXT://10.0.0.1:9093", "false", 2),
        ("SASL_SSL://0.0.0.0:9092", "false", 0),
        ("PLAINTEXT://0.0.0.0:9092", "true", 0),
    ],
)
def test_warning_names_listeners_without_tls_that_other_machines_can_reach(
    listeners: str, allowed: str, warned: int
) -> None:
    settings = Settings({"listeners": listeners, "penstock.allow.plaintext": allowed})
    warnings = exposed_listeners(settings, plan_listeners(settings))
    assert len(warnings) == warned
    assert all("penstock.allow.plaintext=true" in warning for warning in warnings)
