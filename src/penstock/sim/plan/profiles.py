"""Defines profiles: the kinds of faults that a run may have, and how often faults occur."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Defines the kinds of faults that a run may have, and the mean time between two faults."""

    about: str
    faults: tuple[str, ...] = ()
    every_s: float = 6.0
    cluster_faults: tuple[str, ...] = ()
    """Additional kinds of faults in a cluster of several machines."""
    aimed: tuple[str, ...] = ()
    """Additional kinds of faults that wait for a certain request or election; only a share of the seeds has them."""
    aimed_share: float = 0.0
    aimed_every_s: float = 15.0


NETWORK = ("cut", "cut one way", "lossy", "slow", "reset")
PROCESS = ("kill", "kill in write", "restart", "pause", "client kill")
POWER = ("power", "power in write")
DISK = ("stall", "slow sync", "full", "write errors", "read errors", "rot")
CLOCK = ("clock jump",)
#: Faults between machines, or of a machine that leads.
SPLITS = ("isolate", "isolate one way", "isolate a leader", "split", "ring", "cut two", "cut two one way", "hold")
WIRES = ("slow two", "lossy two")
LEADERS = ("kill a leader", "kill the controller", "pause a leader", "rolling restart", "kill all")
LOSSES = ("wipe",)
#: Faults that wait for their moment: see `aimed_faults`.
LATE = ("late isr change", "isr change of the dead", "late marker")
ALONE = ("elected alone",)
VOTERS = ("lose a voter",)
FORGETTING = ("majority forgets",)
#: Faults of one of several log directories.
DIRECTORIES = (
    "break a directory",
    "break a directory at restart",
    "unmount a directory",
    "slow directory",
    "directory nearly full",
)
#: Messages of nodes that a stranger forges: see `forged_messages`.
LIES = (
    "forged vote",
    "forged begin of an epoch",
    "forged end of an epoch",
    "fake voter",
    "fake follower",
    "forged isr change",
    "forged heartbeat",
    "forged producer ids",
    "forged marker",
    "forged envelope",
)
#: Faults that the guard has to find: see `guard_faults`.
GUARDED = ("rot a replica", "forge a record", "lying node")

PROFILES: dict[str, Profile] = {
    "calm": Profile("no faults at all"),
    "network": Profile("links that are cut, slow or lossy, connections that break", NETWORK, 4.0, (*SPLITS, *WIRES)),
    "crash": Profile("processes that are killed, paused and restarted", (*PROCESS, "reset"), 4.0, LEADERS),
    "power": Profile(
        "machines that lose power at any moment",
        (*POWER, "kill", "restart"),
        5.0,
        ("kill a leader", *LOSSES),
        (*VOTERS, *FORGETTING),
        0.5,
    ),
    "disk": Profile("disks that stall, fill up, fail and rot", (*DISK, "kill"), 5.0, ("kill a leader",)),
    "elections": Profile(
        "controllers that die or are cut off during elections",
        ("kill in write", "power in write"),
        1.2,
        ("kill the controller", "isolate a leader", "kill all", "split"),
        (*ALONE, *VOTERS),
        1.0,
        8.0,
    ),
    "late": Profile(
        "requests that arrive late, long after their senders gave up",
        ("client kill", "reset"),
        8.0,
        aimed=LATE,
        aimed_share=1.0,
        aimed_every_s=4.0,
    ),
    "hostile": Profile(
        "everything at once",
        (*NETWORK, *PROCESS, *POWER, *DISK, *CLOCK),
        3.0,
        (*SPLITS, *WIRES, *LEADERS, *LOSSES),
        (*LATE, *ALONE, *VOTERS),
        0.3,
    ),
    "expiry": Profile(
        "days that pass in a moment, while records, producers and offsets expire",
        ("days pass", "days pass", "clock off by days", "kill", "restart", "client kill", "reset", "pause"),
        3.0,
        ("kill a leader", "isolate a leader"),
    ),
    "configs": Profile(
        "configs that guarantees depend on, changed while machines die and lose power",
        ("kill", "kill in write", "restart", "power", "power", "power in write", "slow sync", "reset"),
        4.0,
        ("kill a leader", "isolate a leader", "rolling restart"),
    ),
    "unclean": Profile(
        "unclean elections: the last replica in sync is dead when another one comes back",
        ("kill", "kill in write", "restart", "client kill", "reset"),
        6.0,
        ("swap the living", "swap the living", "kill a leader"),
    ),
    "groups": Profile(
        "members of both protocols in one group that leave, die and are cut off",
        ("kill", "restart", "client kill", "client kill", "reset", "cut", "slow", "pause"),
        3.0,
        ("kill a leader", "isolate a leader"),
    ),
    "wrap": Profile(
        "sequence numbers and producer epochs near their last values",
        ("kill", "restart", "client kill", "reset", "cut", "pause"),
        4.0,
        ("kill a leader", "isolate a leader"),
    ),
    "reassign": Profile(
        "partitions that move between machines while these die, lose power or are cut off",
        ("kill", "kill in write", "restart", "power", "reset", "pause"),
        4.0,
        ("kill a leader", "kill the controller", "isolate", "isolate a leader", "slow two"),
    ),
    "recreation": Profile(
        "topics deleted and created again under their names while they are used",
        ("kill", "kill in write", "restart", "client kill", "reset", "pause", "slow"),
        4.0,
        ("kill a leader", "kill the controller", "isolate", "isolate a leader"),
    ),
    "compaction": Profile(
        "transactions, tombstones and readers of tables on compacted topics, while machines die",
        ("kill", "kill in write", "restart", "power", "power in write", "client kill", "reset"),
        6.0,
        ("kill a leader", "isolate a leader", "rolling restart"),
    ),
    "share": Profile(
        "share groups, whose members, leaders and coordinators die or are cut off",
        ("kill", "kill in write", "restart", "client kill", "client kill", "reset", "pause", "slow"),
        3.0,
        ("kill a leader", "kill a leader", "isolate", "isolate a leader", "rolling restart", "hold", "cut two"),
    ),
    "moves": Profile(
        "replicas moved between log directories while they are used, and machines that die meanwhile",
        ("kill", "kill in write", "restart", "power", "power in write", "client kill", "slow sync"),
        4.0,
        ("kill a leader", "isolate a leader", "isolate a moving leader", "isolate a moving leader"),
    ),
    "directories": Profile(
        "one of a machine's log directories breaks, fills up, becomes slow or is not mounted at a restart",
        (*DIRECTORIES, "kill", "restart"),
        3.0,
        ("break a leader's directory", "replace a directory", "kill a leader", "isolate a leader"),
    ),
    "liars": Profile(
        "strangers that send forged messages of nodes, while machines die or are cut off",
        ("kill", "restart", "client kill", "reset"),
        1.5,
        (*LIES, "kill a leader", "kill the controller", "isolate a leader"),
    ),
    "guard": Profile(
        "replicas that rot, forged records and nodes that lie, while the guard compares replicas",
        ("restart", "kill", "client kill", "reset", "slow"),
        8.0,
        ("kill the controller", "kill a leader"),
        GUARDED,
        1.0,
        5.0,
    ),
    "points": Profile(
        "faults at chosen messages and steps on disks, with few other faults",
        ("kill", "restart", "reset"),
        5.0,
        ("kill a leader", "kill the controller", "isolate", "isolate a leader", "cut two", "rolling restart"),
    ),
}
