"""Tests values of a properties file that come from other files and from the environment."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.cli.exit import Failure
from penstock.cli.properties import read_settings
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.protection import check_protection
from penstock.metadata.configs.providers import Surroundings, resolved

PACKAGE = "org.apache.kafka.common.config.provider."
FILES = {"/etc/secrets": "keystore=hidden-1\nother=x:y\n", "/run/dir/password": "hidden-2\n", "/etc/else": "a=b"}
FILES["/etc/wrong"] = "# keys\n\nkeystore=hidden-4\\uZZtail\n"
BASE = {
    "config.providers": "file, dir,env",
    "config.providers.file.class": PACKAGE + "FileConfigProvider",
    "config.providers.dir.class": PACKAGE + "DirectoryConfigProvider",
    "config.providers.env.class": PACKAGE + "EnvVarConfigProvider",
}


def read(path: str) -> str:
    try:
        return FILES[path]
    except KeyError:
        raise FileNotFoundError(2, "No such file", path) from None


HERE = Surroundings(read, {"KEY_PASSWORD": "hidden-3"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${file:/etc/secrets:keystore}", "hidden-1"),
        ("${dir:/run/dir:password}", "hidden-2"),
        ("${env:KEY_PASSWORD}", "hidden-3"),
        ('a="${file:/etc/secrets:keystore}" b="${env:KEY_PASSWORD}";', 'a="hidden-1" b="hidden-3";'),
        ("${file:/etc/../etc/secrets:other}", "x:y"),
        ("${vault:/etc/secrets:keystore}", "${vault:/etc/secrets:keystore}"),
        ("$1/L", "$1/L"),
    ],
)  # fmt: skip
def test_config_provider_reference_is_replaced_by_the_value_from_the_provider(value: str, expected: str) -> None:
    assert resolved({**BASE, "x": value}, HERE) == {"x": expected}


@pytest.mark.parametrize(
    ("changes", "value", "reason"),
    [
        ({}, "${file:/etc/secrets:missing}", "has no property missing"),
        ({}, "${file:/etc/nothing:key}", "can't be read"),
        (
            {},
            "${file:/etc/wrong:keystore}",
            r"/etc/wrong can't be parsed. Line 3 of the properties has a malformed \\u",
        ),
        ({}, "${file::key}", "names no path"),
        ({}, "${dir:/run/dir:missing}", "can't be read"),
        ({}, "${dir:/run:dir/password}", "names no file"),
        ({}, "${env:MISSING}", "no variable MISSING"),
        ({}, "${env:/etc:KEY_PASSWORD}", "has no path"),
        ({"config.providers.file.param.allowed.paths": "/etc/safe"}, "${file:/etc/secrets:keystore}", "allowed.paths"),
        ({"config.providers.file.param.allowed.paths": "/etc/sec"}, "${file:/etc/secrets:keystore}", "allowed.paths"),
        ({"config.providers.file.param.allowed.paths": "/run"}, "${file:/run/../etc/secrets:keystore}", "allowed"),
        ({"config.providers.file.param.allowed.paths": "etc"}, "x", "relative path"),
        ({"config.providers.env.param.allowlist.pattern": "PUBLIC_.*"}, "${env:KEY_PASSWORD}", "allowlist"),
        ({"config.providers.env.param.allowlist.pattern": "("}, "x", "not a regular expression"),
        ({"config.providers.env.param.other": "y"}, "x", "has no effect"),
        ({"config.providers.vault.class": "y"}, "x", "has no effect"),
        ({"config.providers.env.class": "com.example.Provider"}, "x", "is not one of"),
    ],
)
def test_unknown_config_providers_and_references_without_a_value_are_refused(
    changes: dict[str, str], value: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        resolved({**BASE, **changes, "x": value}, HERE)
    assert "hidden" not in str(refused.value)


def test_server_properties_take_secrets_from_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets").write_text("super=User:ann\n")
    monkeypatch.setenv("RACK", "r1")
    lines = [f"{name}={value}" for name, value in BASE.items()]
    lines += [f"super.users=${{file:{tmp_path}/secrets:super}}", "broker.rack=${env:RACK}"]
    path = tmp_path / "server.properties"
    path.write_text("\n".join(lines))
    settings = read_settings(str(path))
    assert settings.static == {"super.users": "User:ann", "broker.rack": "r1"}
    monkeypatch.delenv("RACK")
    with pytest.raises(Failure, match=r"broker\.rack .* no variable RACK"):
        read_settings(str(path))


def test_config_providers_are_refused_outside_of_a_properties_file() -> None:
    with pytest.raises(ConfigError, match="properties file only"):
        check_protection(BASE)


@pytest.mark.parametrize(
    "text",
    ["${" * 200_000, "${a" * 100_000 + "}", "${a:" + ":" * 200_000, "${a:b" * 100_000 + "}"],
    ids=["starts", "names", "colons", "nested"],
)
def test_long_value_without_references_is_searched_in_linear_time(text: str) -> None:
    began = time.thread_time()
    assert resolved({**BASE, "x": text}, HERE) == {"x": text}
    assert time.thread_time() - began < 5
