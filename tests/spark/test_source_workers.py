"""The script that starts Python for Spark's workers, and their memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.workers import choose_python, launcher, settle


def test_python_workers_use_the_installed_pyspark_and_keep_other_entries_of_their_path(tmp_path: Path) -> None:
    script = launcher(parent=tmp_path)
    assert launcher(parent=tmp_path) == script
    code = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])"
    path = "/a b:/x/lib/pyspark.zip:/x/lib/py4j-0.10.9.9-src.zip:/x/jars/spark-core_2.13-4.2.0.jar:/x/mine.zip"
    done = subprocess.run(
        [str(script), "-c", code, "one:two", "three four"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "/a b:/x/mine.zip ['one:two', 'three four']"


def test_launcher_script_of_python_workers_is_used_only_in_local_mode_and_if_no_python_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here: dict[str, str] = {}
    choose_python(here, local=True)
    assert here == {"PYSPARK_PYTHON": str(launcher())}
    elsewhere: dict[str, str] = {}
    choose_python(elsewhere, local=False)
    assert elsewhere == {"PYSPARK_PYTHON": sys.executable}
    chosen = {"PYSPARK_PYTHON": "/opt/python"}
    choose_python(chosen, local=True)
    assert chosen == {"PYSPARK_PYTHON": "/opt/python"}


def test_python_workers_run_this_python_if_the_launcher_script_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found: dict[str, str] = {}
    choose_python(found, local=True)
    assert found == {"PYSPARK_PYTHON": sys.executable}


def test_garbage_collection_at_the_end_of_a_task_skips_objects_loaded_before_the_first_task() -> None:
    settle.cache_clear()
    before = gc.get_freeze_count()  # conftest has frozen the modules that were loaded at collection
    loaded = [[number] for number in range(10_000)]
    try:
        settle()
        frozen = gc.get_freeze_count()
        assert frozen > before + len(loaded) // 2
        made_later = [[number] for number in range(100_000)]
        settle()
        # The count falls when frozen objects are freed; objects frozen later would raise it.
        assert gc.get_freeze_count() < frozen + len(made_later) // 2
    finally:
        gc.unfreeze()


def test_python_worker_keeps_freed_memory_for_later_use() -> None:
    """Runs in another process, because malloc's settings hold for a whole process."""
    program = """
import resource
from penstock.spark.workers import keep_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        bytearray(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
if keep_memory():
    faults()
    found = faults()
    assert found < 2000, found  # each one asks for 2,048 pages
"""
    subprocess.run([sys.executable, "-c", program], check=True)
