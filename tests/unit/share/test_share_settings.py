"""Tests the offset at which a share group starts, according to its config."""

from __future__ import annotations

import pytest

from penstock.share.group_settings import Reset, parse_reset


@pytest.mark.parametrize(
    ("text", "reset"),
    [
        ("earliest", Reset("earliest")),
        ("latest", Reset("latest")),
        ("by_duration:PT1H30M", Reset("by_duration", 5_400_000)),
        ("by_duration:P2DT0.5S", Reset("by_duration", 2 * 86_400_000 + 500)),
    ],
)
def test_share_auto_offset_reset_is_parsed_as_earliest_or_latest_or_a_duration(text: str, reset: Reset) -> None:
    assert parse_reset(text) == reset
