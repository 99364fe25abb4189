"""The page at /: what it may load, that people can use it, and what its figures cost."""

import asyncio
import re
import tomllib
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from served_engine import Served, eventually

from server.live import LiveView

ROOT = Path(__file__).parents[2]
FILES = sorted(file for file in (ROOT / "server/page").iterdir() if file.suffix != ".png")
NAMES = [file.name for file in FILES]


def test_files_are_served_under_a_strict_policy(served: Served):
    html = served.http.get("/")
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("", *(f"page/{name}" for name in NAMES if name != "index.html")):
        headers = served.http.get(f"/{name}").headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    for name in ("/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/README.md", "/page/"):
        assert served.http.get(name).status_code == 404


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_comes_from_elsewhere_and_no_text_becomes_code(file: Path):
    text = file.read_text()
    assert not re.search(r"(https?:)?//[a-z0-9]", re.sub(r"^\s*//.*$", "", text, flags=re.M))
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", text
    )
    if file.suffix == ".html":
        assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*src=)", text)


def test_every_control_has_a_name():
    html = (ROOT / "server/page/index.html").read_text()
    for control in re.findall(r"<(?:input|textarea|select)[^>]*>", html):
        name = re.search(r'id="(\w+)"', control)
        before = html[: html.index(control)]
        is_inside = before.rfind("<label") > before.rfind("</label>")
        assert is_inside or (name and f'for="{name[1]}"' in html), control


def test_files_are_part_of_the_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    given = settings["package-data"]["server"]
    found = {file for pattern in given for file in (ROOT / "server").glob(pattern)}
    assert found == set(FILES)


LONG = {"prompt": "secret words", "max_tokens": 500, "stream": True}


def test_blocks_tell_of_the_pool_and_nothing_of_the_texts(slow: Served):
    with slow.http.stream("POST", "/v1/completions", json=LONG | {"request_id": "private"}):
        assert eventually(lambda: len(slow.engine.running) == 1)
        response = slow.http.get("/v1/engine/blocks")
    told = response.json()
    assert told["num_blocks"] == len(told["refs"]) == len(told["cached"]) == len(told["owners"])
    assert told["sequences"][0]["prompt"] == 20 and told["counts"]["evictions"] == 7
    assert "secret" not in response.text and "private" not in response.text


def test_many_who_look_ask_the_engine_once(served: Served):
    async def look():
        view = LiveView(served.engine)  # type: ignore[arg-type]
        await asyncio.gather(*(view.json() for _ in range(20)))

    before = served.engine.num_maps
    asyncio.run(look())
    assert served.engine.num_maps == before + 1


def test_nobody_waits_for_an_engine_that_is_stuck(slow: Served):
    slow.engine.busy_s = 10.0
    assert slow.http.get("/v1/engine/blocks").status_code == 503 and not slow.engine.num_maps


# ---- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def url(served: Served) -> str:
    return str(served.http.base_url)


def test_a_question_is_answered_by_keyboard_alone(browser: Browser, served: Served):
    browser.open(url(served))
    browser.wait_for("document.getElementById('state').textContent === 'live'")
    assert "fake" in browser.value("document.getElementById('model').textContent")
    browser.value("document.getElementById('prompt').focus()")
    browser.type("<img src=x onerror=alert(1)>")
    browser.press("Enter")
    browser.wait_for("document.querySelector('.note')?.textContent.includes('tokens/s')")
    said = browser.value("document.querySelector('.answer span').textContent")
    assert "<img src=x" in said and len(said) == 256
    assert not browser.value("document.querySelector('img')") and not browser.problems


def test_blocks_are_read_out_by_arrow_keys(browser: Browser, slow: Served):
    with slow.http.stream("POST", "/v1/completions", json=LONG):
        browser.open(url(slow))
        browser.wait_for("document.querySelectorAll('#sequences tr').length === 1")
        browser.value("document.getElementById('map').focus()")
        texts = []
        for _ in range(3):
            browser.press("ArrowRight")
            texts.append(browser.value("document.getElementById('cell').textContent"))
    assert "Block 1 of 64: held by" in texts[0] and "Block 2 of 64: free" in texts[1]
    assert "can be found" in texts[1] and "not in the prefix cache" in texts[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, slow: Served, width, scheme):
    with slow.http.stream("POST", "/v1/completions", json=LONG):
        browser.open(url(slow), width=width, scheme=scheme)
        browser.wait_for("document.querySelectorAll('#sequences tr').length === 1")
        assert browser.value("document.documentElement.scrollWidth") <= width
        dark = browser.value("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(17, 22, 28)") == (scheme == "dark")
    assert not browser.problems
