"""Sends frames to SASL and TLS listeners without logging in, and checks that they do not harm the node.

No attacker is logged in, valid clients still log in, no exception is unhandled, memory does not grow, and no request
holds the event loop. The node and the attackers run in separate processes, so that the measurements include only the
node: see attacked_node.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST_STALL_MS = 50
MOST_GROWTH_MB = 8

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def attack(frames: int, seed: int, limit_s: int) -> None:
    program = str(Path(__file__).with_name("attacked_node.py"))
    command = [sys.executable, program, str(frames), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    figures = json.loads(done.stdout)
    assert figures["escaped"] == []
    assert figures["sent"] >= frames
    assert figures["dispatched"] > frames / 10, "most connections were refused, so that the test shows little"
    assert figures["accepted"] == figures["logins"] > 0, figures
    assert figures["longest_stall_ms"] < MOST_STALL_MS, figures
    assert figures["grown_mb"] < MOST_GROWTH_MB, figures
    print(figures)


def test_ten_thousand_frames_before_authentication_do_not_harm_the_node() -> None:
    attack(10_000, 1, limit_s=200)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_frames_before_authentication_do_not_harm_the_node() -> None:
    attack(1_000_000, int(os.environ.get("FUZZ_SEED", "2")), limit_s=1700)
