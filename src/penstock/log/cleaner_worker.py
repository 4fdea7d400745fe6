"""Runs in the helper process of compaction: reads a compaction job from stdin, and writes the job's result to stdout.

The process ends when its broker ends, so that it never writes files at the same time as the next broker process.
"""

from __future__ import annotations

import contextlib
import os
import sys

from penstock.disk.real import RealDisk
from penstock.log.compaction import CompactionJob, compact


def main() -> int:
    with contextlib.suppress(AttributeError, OSError):
        os.nice(10)
    disk = RealDisk(max_open_files=64, max_threads=1)
    broker = os.getppid()
    job = CompactionJob.from_json(sys.stdin.buffer.read())
    result = compact(disk, job, wanted=lambda: os.getppid() == broker)
    sys.stdout.buffer.write(result.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
