"""Implements Kafka's config providers: a properties file can take values from another file or the environment.

    config.providers=secrets,env
    config.providers.secrets.class=org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
    ssl.keystore.password=${secrets:/etc/penstock/secrets.properties:keystore}
    ssl.key.password=${env:KEY_PASSWORD}

So a password is neither in server.properties nor in the list of processes. A reference without a value is refused;
Kafka would use the text of the reference as the value.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.properties import parse_properties

PROVIDERS = "config.providers"
_PACKAGE = "org.apache.kafka.common.config.provider."
_FILE, _DIRECTORY, _ENV = "FileConfigProvider", "DirectoryConfigProvider", "EnvVarConfigProvider"
_PARAMETERS = {_FILE: "allowed.paths", _DIRECTORY: "allowed.paths", _ENV: "allowlist.pattern"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Gives access to files and to the environment. `read` returns a file's text and raises OSError."""

    read: Callable[[str], str]
    environment: Mapping[str, str]


def resolved(properties: Mapping[str, str], surroundings: Surroundings) -> dict[str, str]:
    """Returns the properties with all references replaced. The properties that define the providers are left out.

    Raises ConfigError. Its message names the property and shows no value.
    """
    names = [name.strip() for name in properties.get(PROVIDERS, "").split(",") if name.strip()]
    providers = {name: _provider(name, properties, surroundings) for name in names}
    known = {f"{PROVIDERS}.{name}.{rest}" for name in names for rest in _own_properties(name, properties)}
    found: dict[str, str] = {}
    for name, value in properties.items():
        if name == PROVIDERS or name in known:
            continue
        if name.startswith(f"{PROVIDERS}."):
            raise ConfigError(f"{name} has no effect: name its provider in {PROVIDERS}, or check its spelling.")
        found[name] = _replaced(name, value, providers)
    return found


def _replaced(name: str, value: str, providers: Mapping[str, _Provider]) -> str:
    """Returns the value with each `${provider:key}` and `${provider:path:key}` replaced.

    References in a replacement are not replaced again.
    """
    parts: list[str] = []
    done = 0
    while (start := value.find("${", done)) >= 0 and (end := value.find("}", start)) >= 0:
        provider_name, colon, rest = value[start + 2 : end].partition(":")
        provider = providers.get(provider_name) if colon else None
        parts.append(value[done:start])
        if provider is None:
            parts.append(value[start : end + 1])  # as in Kafka: not a reference
        else:
            path, _, key = rest.rpartition(":")
            try:
                parts.append(provider(path, key))
            except ConfigError as problem:
                raise ConfigError(
                    f"{name} has a reference to provider {provider_name} without a value: {problem}"
                ) from None
        done = end + 1
    return "".join((*parts, value[done:]))


_Provider = Callable[[str, str], str]


def _own_properties(name: str, properties: Mapping[str, str]) -> tuple[str, str]:
    kind = properties.get(f"{PROVIDERS}.{name}.class", "").strip().removeprefix(_PACKAGE)
    return "class", f"param.{_PARAMETERS.get(kind, '')}"


def _provider(name: str, properties: Mapping[str, str], surroundings: Surroundings) -> _Provider:
    setting = f"{PROVIDERS}.{name}.class"
    named = properties.get(setting, "").strip()
    kind = named.removeprefix(_PACKAGE)
    if kind not in _PARAMETERS or named == kind:
        raise ConfigError(
            f"{setting} is not one of {', '.join(_PACKAGE + each for each in _PARAMETERS)}: use one of these."
        )
    parameter = properties.get(f"{PROVIDERS}.{name}.param.{_PARAMETERS[kind]}", "").strip()
    if kind == _ENV:
        return _of_environment(parameter, surroundings.environment)
    allowed = [posixpath.normpath(path.strip()) for path in parameter.split(",") if path.strip()]
    if not all(posixpath.isabs(path) for path in allowed):
        raise ConfigError(f"{PROVIDERS}.{name}.param.allowed.paths has a relative path: write absolute paths.")
    return (_of_file if kind == _FILE else _of_directory)(allowed, surroundings.read)


def _of_environment(pattern: str, environment: Mapping[str, str]) -> _Provider:
    try:
        allowed = re.compile(pattern or ".*")
    except re.error as problem:
        raise ConfigError(f"allowlist.pattern is not a regular expression: {problem}.") from None

    def value(path: str, key: str) -> str:
        if path:
            raise ConfigError("an environment variable has no path: write ${provider:NAME}.")
        if key not in environment or not allowed.fullmatch(key):
            raise ConfigError(f"the environment has no variable {key}, or allowlist.pattern does not allow it.")
        return environment[key]

    return value


def _of_file(allowed: list[str], read: Callable[[str], str]) -> _Provider:
    def value(path: str, key: str) -> str:
        text = _text(_allowed(path, allowed), read)
        try:
            found = parse_properties(text)
        except ConfigError as problem:
            raise ConfigError(f"{path} can't be parsed. {problem}") from None
        if key not in found:
            raise ConfigError(f"{path} has no property {key}.")
        return found[key]

    return value


def _of_directory(allowed: list[str], read: Callable[[str], str]) -> _Provider:
    def value(path: str, key: str) -> str:
        if not key or "/" in key or key in (".", ".."):
            raise ConfigError("the reference names no file of the directory: write ${provider:/directory:file}.")
        text = _text(posixpath.join(_allowed(path, allowed), key), read)
        return text.rstrip("\r\n")  # Kafka trims values

    return value


def _allowed(path: str, allowed: list[str]) -> str:
    if not path:
        raise ConfigError("the reference names no path: write ${provider:/path:key}.")
    plain = posixpath.normpath(path)
    inside = any(plain == each or plain.startswith(each.rstrip("/") + "/") for each in allowed)
    if allowed and not (posixpath.isabs(plain) and inside):
        raise ConfigError(f"{path} is not in a directory of allowed.paths: add its directory.")
    return plain


def _text(path: str, read: Callable[[str], str]) -> str:
    try:
        return read(path)
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} can't be read ({getattr(problem, 'strerror', None) or 'not UTF-8'}).") from None
