"""Tests the files of the console: pages load only files of this origin, and no script parses data as HTML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock.http
from penstock.http.static_files import INDEX, KINDS, is_static, static_file

ROOT = Path(penstock.http.__file__).parent / "static"
SCRIPTS = [path for path in sorted(ROOT.rglob("*.js")) if "vendor" not in path.parts]
#: Ways to turn text into HTML or into code.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"
)


def url_of(path: Path) -> str:
    return f"/console/{path.relative_to(ROOT).as_posix()}"


def test_every_file_of_the_console_is_served_with_its_content_type() -> None:
    files = [path for path in ROOT.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        answer = static_file(url_of(path))
        assert (answer.status, answer.content_type) == (200, KINDS[path.suffix[1:]]), path
        assert answer.body == path.read_bytes()


def test_console_page_loads_only_files_of_the_console() -> None:
    html = static_file(INDEX).body.decode()
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert len(loaded) >= 6
    for each in loaded:
        assert static_file(each).status == 200, each
        assert is_static(each)
    assert not re.search(r"<style|<script>|\son[a-z]+=|style=", html), "the policy forbids inline scripts and styles"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_only_existing_files_and_never_parse_text_as_html(path: Path) -> None:
    source = path.read_text()
    for imported in re.findall(r'from "([^"]+)"', source):
        assert (path.parent / imported).is_file(), imported
    assert not FORBIDDEN.search(source)
    assert "//cdn" not in source
    assert "https://" not in source


@pytest.mark.parametrize(
    "path",
    [
        "/console/../site.py",
        "/console/..",
        "/console/.git/config.txt",
        "/console/pages/../../site.txt",
        "/console//etc/passwd.txt",
        "/console/pages",
        "/console/a b.js",
        "/console/none.js",
        "/console/vendor/uplot-1.6.32/x.map",
        "/elsewhere/app.js",
    ],
)
def test_path_that_names_no_file_of_the_console_gets_404(path: str) -> None:
    assert static_file(path).status == 404


def test_licence_of_the_plotting_library_is_in_the_package() -> None:
    [vendor] = (ROOT / "vendor").iterdir()
    assert "MIT" in (vendor / "LICENSE.txt").read_text()
