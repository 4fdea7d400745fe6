"""`penstock sim --bridge PORT` lets real clients use the simulated cluster of a seed, in real time.

The cluster runs until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.sim.plan.plan import Plan

#: How often new lines of the story are printed.
PRINT_S = 0.2


def serve_bridge(plan: Plan, first_port: int) -> int:
    return asyncio.run(_serve(plan, first_port))


async def _serve(plan: Plan, first_port: int) -> int:
    from penstock.sim.run.bridge import BridgedCluster

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster = BridgedCluster(plan, first_port=first_port)
    try:
        await cluster.start()
    except OSError as error:
        raise Failure(f"the bridge can't listen: {error}; choose another port, or 0 for free ports") from None
    print(f"bootstrap.servers={cluster.bootstrap_servers}", flush=True)
    output.note(f"faults of the profile {plan.profile} for {plan.duration_s:g} s; Ctrl-C ends the cluster")
    printed = 0
    try:
        while not stop.is_set():
            for line in cluster.story[printed:]:
                print(f"  {line}", flush=True)
            printed = len(cluster.story)
            try:
                await asyncio.wait_for(stop.wait(), PRINT_S)
            except TimeoutError:
                continue
    finally:
        await cluster.close()
    for violation in cluster.violations:
        print(f"BROKEN  {violation}")
    return Exit.FAILED if cluster.violations else Exit.OK
