"""Classifies each property of a server.properties file as honoured, ignored or refused.

A property is refused if a node would not start with it, and ignored if the node would start but not use it. The
commands `penstock start` and `penstock check` use this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import NamedTuple

from penstock.metadata.configs.broker import BROKER_CONFIGS, broker_key
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.protection import protection_refusal
from penstock.metadata.configs.settings import check_broker_settings


class Verdict(StrEnum):
    HONOURED = "honoured"
    IGNORED = "ignored"
    REFUSED = "refused"


class Judgement(NamedTuple):
    name: str
    verdict: Verdict
    reason: str = ""
    """The reason for the judgement as a sentence; empty if the property is honoured."""


def judge(static: Mapping[str, str]) -> list[Judgement]:
    """Returns the class (honoured, ignored or refused) of each property of the file, sorted by name."""
    return [_judge(name, static[name]) for name in sorted(static)]


def _judge(name: str, value: str) -> Judgement:
    key = broker_key(name)
    refusal = protection_refusal(name, value)
    if refusal is not None:
        return Judgement(name, Verdict.REFUSED, refusal)
    if key is None:
        near = get_close_matches(name, BROKER_CONFIGS, n=1, cutoff=0.8)
        advice = f"write {near[0]} if you mean that" if near else "check its spelling"
        return Judgement(
            name, Verdict.IGNORED, f"{name} is not a broker property of Kafka 4.3 and is ignored: {advice}."
        )
    try:
        check_broker_settings([(name, value)])
    except ConfigError as problem:
        return Judgement(name, Verdict.REFUSED, str(problem))
    if not key.supported and value != key.default:
        reason = f"{name} is accepted but has no effect: Penstock does not support it yet."
        return Judgement(name, Verdict.IGNORED, reason)
    return Judgement(name, Verdict.HONOURED)
