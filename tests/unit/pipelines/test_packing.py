"""Tests the archives that bring Penstock to Spark executors. Needs no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.pipelines import packing
from penstock.pipelines.packing import PackError, pack

pytestmark = pytest.mark.programs


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces the packed packages to a small one, because all packages have a hundred megabytes."""
    monkeypatch.setattr(packing, "PACKAGES", ("h11", "no-such-package"))
    monkeypatch.setattr(packing, "NEEDED", ())


def unpacked(archive: Path, place: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    return place


def run(python: Path, code: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env={"PATH": path}, cwd="/", timeout=100, check=False
    )


def test_packed_zip_has_the_modules_that_spark_executors_import(tmp_path: Path) -> None:
    target = tmp_path / "penstock.zip"
    assert pack(target) == len(zipfile.ZipFile(target).namelist())
    code = f"import sys; sys.path[:0] = [{str(target)!r}]; import penstock; print(penstock.__file__)"
    alone = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.startswith(str(target))
    names = zipfile.ZipFile(target).namelist()
    assert "pyspark_penstock/__init__.py" in names
    assert not [name for name in names if name.endswith(".pyc")]


@pytest.mark.usefixtures("few")
def test_packed_environment_starts_the_python_of_the_machine_with_the_packed_packages(tmp_path: Path) -> None:
    pack(tmp_path / "env.tar.gz")
    place = unpacked(tmp_path / "env.tar.gz", tmp_path / "elsewhere" / "env")
    (tmp_path / "bin").mkdir()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "bin" / version).symlink_to(Path(sys.executable).resolve())
    code = "import h11, penstock; print(h11.__file__, penstock.__file__)"
    done = run(place / "bin" / "python3", code, f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert done.stdout.split() == [str(place / "lib" / name / "__init__.py") for name in ("h11", "penstock")]


@pytest.mark.usefixtures("few")
def test_packed_environment_reports_that_the_machine_lacks_the_needed_python_version(tmp_path: Path) -> None:
    pack(tmp_path / "env.tgz")
    place = unpacked(tmp_path / "env.tgz", tmp_path / "env")
    (tmp_path / "bin").mkdir()
    for name in ("sh", "dirname", "hostname"):
        found = next(Path(each) / name for each in ("/usr/bin", "/bin") if os.access(Path(each) / name, os.X_OK))
        (tmp_path / "bin" / name).symlink_to(found)
    done = run(place / "bin" / "python3", "", str(tmp_path / "bin"))
    assert done.returncode == 127
    assert "which this environment was packed for, is not on the PATH" in done.stderr


@pytest.mark.usefixtures("few")
def test_packages_that_the_user_names_are_packed_with_all_their_requirements(tmp_path: Path) -> None:
    pack(tmp_path / "env.tar.gz", ["pytest"])
    with tarfile.open(tmp_path / "env.tar.gz") as packed:
        names = set(packed.getnames())
    assert {"lib/pytest/__init__.py", "lib/pluggy/__init__.py", "lib/penstock/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("lib/pyspark/", "lib/..", "/"))]


@pytest.mark.usefixtures("few")
def test_packing_errors_are_reported_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PackError, match="Package no-such-package is not installed here"):
        pack(tmp_path / "env.tar.gz", ["no-such-package"])
    assert main(["pipeline", "pack", str(tmp_path / "env.rar")]) == Exit.USAGE
    assert "use .tar.gz (for --archives), or .zip for Penstock alone" in capsys.readouterr().err
    assert main(["pipeline", "pack", str(tmp_path / "nowhere" / "env.zip")]) == Exit.STORAGE
    assert main(["pipeline", "pack", str(tmp_path / "code.zip")]) == Exit.OK
    assert f"spark-submit --py-files {tmp_path / 'code.zip'}" in capsys.readouterr().err
