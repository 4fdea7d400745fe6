"""Tests which properties of a file are honoured, ignored and refused."""

from __future__ import annotations

from penstock.metadata.configs.judgement import Verdict, judge


def test_every_property_of_a_file_is_classified_as_honoured_or_ignored_or_refused() -> None:
    found = {
        each.name: each
        for each in judge(
            {
                "num.partitions": "3",
                "num.io.threads": "4",
                "num.network.threads": "3",
                "no.such.property": "x",
                "listener.name.internal.ssl.keystore.password": "secret",
                "log.segment.bytes": "few",
                "message.max.bytes": "-1",
            }
        )
    }
    assert {name: each.verdict for name, each in found.items()} == {
        "listener.name.internal.ssl.keystore.password": Verdict.HONOURED,
        "log.segment.bytes": Verdict.REFUSED,
        "message.max.bytes": Verdict.REFUSED,
        "no.such.property": Verdict.IGNORED,
        "num.io.threads": Verdict.IGNORED,
        "num.network.threads": Verdict.HONOURED,
        "num.partitions": Verdict.HONOURED,
    }
    assert list(found) == sorted(found)
    assert not any("secret" in each.reason for each in found.values())
    assert all(each.reason.startswith(each.name) for each in found.values() if each.verdict is not Verdict.HONOURED)


def test_a_misspelt_property_gets_a_suggestion() -> None:
    (found,) = judge({"log.retention.hour": "1"})
    assert found.reason == (
        "log.retention.hour is not a broker property of Kafka 4.3 and is ignored: "
        "write log.retention.hours if you mean that."
    )
