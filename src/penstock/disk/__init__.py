"""Puts all file access behind an interface, with two implementations: the real disk, and a disk in memory.

All file access goes through a `Disk`, so the same log runs on ext4, in memory and in a simulator that loses unsynced
bytes. An append writes all bytes or none. Calls that may block (fsync, a read that is not in the page cache) have an
async form that leaves the event loop free. Called by `log`, `broker` (metadata log) and `cli`. Linux-only calls have
portable replacements, chosen by the flags in `real.py`.
"""
