"""The console in a browser, if one is installed: its script obeys the page's policy and updates changed parts."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from http_harness import Site, serving
from test_http_console import facts

from penstock.http.console import PageContext, page
from penstock.http.messages import Request, Response
from penstock.http.overview import overview, topic_sums
from penstock.http.pipelines import Pipeline
from penstock.http.site import HTML, STATIC, static

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here"),
]


def test_the_console_page_refreshes_itself(tmp_path: Path) -> None:
    async def scenario() -> str:
        looks = 0

        async def answer(request: Request) -> Response:
            nonlocal looks
            if request.path in STATIC:
                return static(request.path)
            looks += 1
            told = overview(facts(), topic_sums(facts()), {}, [])
            shown = [Pipeline(f"look-{looks}", "running", "", "", "")]
            return Response(200, HTML, page(PageContext(1, "1"), told, shown).encode())

        async with serving(Site(answer)) as (server, _):
            assert BROWSER is not None
            process = await asyncio.create_subprocess_exec(
                *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
                *("--virtual-time-budget=9000", "--dump-dom", server.url),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                dom, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
            return dom.decode()

    dom = asyncio.run(scenario())
    found = re.search(r"look-(\d+)", dom)
    assert found is not None
    assert int(found[1]) >= 2
    assert re.search(r'<p id="silence" hidden="?"?', dom)
    assert "old" not in re.findall(r"<body class=\"([^\"]*)\"", dom)
