"""The helper process of compaction: a job in on stdin, its result out on stdout."""

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
    result = compact(disk, CompactionJob.from_json(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(result.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
