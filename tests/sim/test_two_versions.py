"""Tests rolling upgrades from another version of the code under load: the cluster keeps its guarantees, and the
simulator finds two versions that read a record differently."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.sim.engine.node_code import VersionError, other_version, this_version
from penstock.sim.plan.draw import draw_plan
from penstock.sim.run.simulation import Verdict, run_plan


def version(path: Path, file: str, old: str, new: str) -> str:
    """Copies the package into the directory `path`, with one text replaced. Returns `path`."""
    package = path / "penstock"
    shutil.copytree(Path(penstock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / file).read_text()
    assert text.count(old) == 1, f"{file} has to have the text once: {old}"
    (package / file).write_text(text.replace(old, new))
    return str(path)


def upgraded(path: str, seed: int, profile: str) -> Verdict:
    return run_plan(replace(draw_plan(seed, profile, nodes=3, duration_s=12), other_version=path))


@pytest.mark.timeout(300)
def test_rolling_upgrade_from_a_version_with_another_constant_breaks_no_rule(tmp_path: Path) -> None:
    old = version(tmp_path, "log/maintenance.py", "space_check_ms: int = 500", "space_check_ms: int = 600")
    verdicts = [upgraded(old, seed, profile) for seed, profile in ((1, "crash"), (1, "crash"), (2, "hostile"))]
    assert [str(each) for verdict in verdicts for each in verdict.violations] == []
    assert verdicts[0].digest == verdicts[1].digest
    assert sum("is upgraded" in str(line) for line in verdicts[0].story) == 3


@pytest.mark.timeout(300)
def test_simulator_finds_a_version_that_reads_a_metadata_record_differently(tmp_path: Path) -> None:
    file = "protocol/persisted/metadata/partition_change_record.py"
    old = version(tmp_path, file, "default=None, tag=0)", "default=None, tag=9)")
    rules = {each.rule for each in upgraded(old, 1, "calm").violations}
    assert "one state per change" in rules


def test_two_loaded_versions_share_protocol_errors_but_not_node_classes(tmp_path: Path) -> None:
    old = other_version(version(tmp_path, "log/maintenance.py", "int = 500", "int = 600"))
    this = this_version()
    assert old.node.__module__ == "penstock.other.node.node"
    assert old.settings is not this.settings
    from penstock.log.log import Log
    from penstock.protocol.errors import KafkaError

    assert old.twin(Log) is not None
    assert old.twin(KafkaError) is None


def test_directory_without_the_penstock_package_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(VersionError, match="has no package penstock"):
        other_version(str(tmp_path))
