"""The report in headless Chromium: every control is used, the console stays silent, pictures are taken.

`make browser`; set TORCHRANK_SCREENSHOTS to a folder to keep the pictures, and TORCHRANK_REPORT to look at a report of
your own. CHROMIUM names the browser if it is not on the path.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.report.sweep import write_run
from torchrank.report.page.collect import collect
from torchrank.report.page.page import write_page

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
EVIL = "</script><img src=x onerror=alert(1)>"
SIZES = {"light": (1200, 900), "dark": (1200, 900), "phone": (390, 844)}


def write_example(root: Path) -> Path:
    """Three rankers over two folds in two conventions, with curves, groups, findings and an id that is no good."""
    generator = np.random.default_rng(0)
    for fold in (1, 2):
        ids = [f"{fold}-{number}" for number in range(60)] + [f"{EVIL}{fold}"]
        base = generator.random(61)
        facts = {"length": generator.integers(5, 90, 61), "relevant": generator.integers(0, 5, 61)}
        for strength, name in ((0.2, "lgmml"), (0.15, "gbdt"), (0.0, f"random {EVIL}")):
            own = {**facts, "group": generator.integers(0, 3, 61)} if name == "lgmml" else facts
            values = np.clip(base + strength + generator.normal(0, 0.1, 61), 0, 1)
            queries = {f"{convention}/{measure}": np.clip(values * scale, 0, 1) for convention in ("default", "letor")
                       for measure, scale in (("ndcg@10", 1.0), ("map", 0.9))}  # fmt: skip
            folder = write_run(root / f"{name[:5]}{fold}", name, value=float(values.mean()), queries=queries, fold=fold,
                               ids=ids, facts=own, settings={"model.lr": 0.1 * fold})  # fmt: skip
            (folder / "log").mkdir()
            rows = [f"{epoch},{epoch},{1 / (epoch + 1)},{strength + epoch / 50}" for epoch in range(20)]
            (folder / "log/metrics.csv").write_text("\n".join(["epoch,step,train/loss,val/ndcg@10", *rows]))
            content = json.loads((folder / "results.json").read_text())
            content |= {"config": {"model": {"lr": 0.1 * fold, "name": name}, "seed": 0}, "findings": {"note": EVIL}}
            (folder / "results.json").write_text(json.dumps(content))
    return root


def learned(folder: Path) -> dict:
    if not folder.name.startswith("lgmml"):
        return {}
    shares = (2.0 ** -np.arange(1, 9)).tolist()
    return {
        "spectra": [{"label": f"group {number}", "size": 8, "shares": shares} for number in range(3)],
        "importances": {"kind": "Weights", "unit": "weight", "total": 9, "features": ["bm25", EVIL], "values": [2, -1]},
    }


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    given = os.environ.get("TORCHRANK_REPORT")
    if given:
        return Path(given).resolve()
    root = tmp_path_factory.mktemp("report")
    write_page(root / "report.html", collect([write_example(root / "runs")], learned))
    return root / "report.html"


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: the extra browser")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, report):
    """Opens the report; at the end nothing may have been said on the console or asked of the network."""
    told, pages = [], []

    def open_page(look="light"):
        width, height = SIZES[look]
        page = chromium.new_page(
            viewport={"width": width, "height": height},
            has_touch=look == "phone",
            color_scheme="light" if look == "light" else "dark",
            reduced_motion="reduce",
        )
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or told.append(request.url))
        page.goto(report.as_uri())
        page.wait_for_selector("#configuration")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert told == []


def numbers(page, section, column):
    cells = page.locator(f"#{section} .box >> nth=0").locator(f"tbody tr td:nth-child({column})").all_inner_texts()
    return [float(cell.split()[0].replace("−", "-")) for cell in cells]  # noqa: RUF001


def point_at_a_query(page):
    """Move the mouse to a dot of the scatter, and return the tip."""
    chart = page.locator("#queries svg").first
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(100)  # until scrolling has ended
    dots, box = chart.locator("path[stroke-linecap=round]").nth(1).get_attribute("d"), chart.bounding_box()
    x, y = dots.split("h0")[0].lstrip("M").split()
    page.mouse.move(box["x"] + float(x), box["y"] + float(y))
    page.locator("#tip").wait_for()
    return page.locator("#tip")


@pytest.mark.parametrize("look", SIZES)
def test_pictures(open_page, look, tmp_path):
    page = open_page(look)
    folder = Path(os.environ.get("TORCHRANK_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"report_{look}_whole.png", full_page=True)
    if look == "dark":
        page.evaluate("document.querySelector('#queries').scrollIntoView()")
        point_at_a_query(page)
    page.screenshot(path=folder / f"report_{look}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[look][0]  # nothing sticks out
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(255, 255, 255)" if look == "light" else "rgb(18, 21, 26)")


def test_a_click_on_a_header_sorts(open_page):
    page = open_page()
    header = page.locator("#results thead button", has_text="map")
    header.click()
    assert header.locator("..").get_attribute("aria-sort") == "descending"
    found = numbers(page, "results", 3)
    assert len(found) >= 2 and found == sorted(found, reverse=True)
    header.press("Enter")  # by keyboard too
    assert numbers(page, "results", 3) == sorted(found)


def test_conventions_and_measures_can_be_chosen(open_page):
    page = open_page()
    page.locator("#results").get_by_role("button", name="letor").click()
    assert "Convention letor" in page.locator("#results").inner_text()
    page.locator("#results select").select_option("map")
    assert "map" in page.locator("#queries figcaption >> nth=0 >> xpath=..").inner_text()


def test_two_rankers_are_compared_query_by_query(open_page):
    page = open_page()
    before = page.locator("#queries figcaption").all_inner_texts()
    page.locator("#queries").get_by_label("Ranker B").select_option(index=2)
    after = page.locator("#queries figcaption").all_inner_texts()
    assert before != after
    chosen = page.locator("#losses").get_by_label("Ranker B").input_value()
    assert chosen == page.locator("#queries").get_by_label("Ranker B").input_value() == "2"
    page.locator("#queries").get_by_role("button", name="Swap").click()
    assert page.locator("#queries").get_by_label("Ranker A").input_value() == "2"


def test_the_query_under_the_mouse_is_told(open_page):
    page = open_page()
    tip = point_at_a_query(page)
    assert tip.inner_text().startswith("Query ")
    page.mouse.move(2, 2)
    assert not tip.is_visible()


def test_every_chart_can_be_pointed_at(open_page):
    page = open_page()
    for chart in page.locator("main svg").all():
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        for share in (0.2, 0.5, 0.8):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + share * box["height"])
    assert page.locator("main svg").count() >= 7


def test_every_choice_of_every_select_draws(open_page):
    page = open_page()
    for place in range(page.locator("main select").count()):
        for option in range(page.locator("main select").nth(place).locator("option").count()):
            page.locator("main select").nth(place).select_option(index=option)
    assert "NaN" not in page.locator("main").inner_html() and "undefined" not in page.locator("main").inner_text()


def test_colours_can_be_set(open_page):
    page = open_page()
    background = "getComputedStyle(document.body).backgroundColor"
    seen = [page.evaluate(background)]
    for _ in range(3):
        page.locator("#theme").click()
        seen.append(page.evaluate(background))
    assert seen[2] != seen[0] == seen[1] == seen[3]  # auto (light), light, dark, auto


def test_options_are_compared_and_filtered(open_page):
    page = open_page()
    box = page.locator("#configuration")
    few = box.locator(".box").last.locator("tbody tr").count()
    box.get_by_role("button", name="All options").click()
    many = box.locator(".box").last.locator("tbody tr").count()
    assert 0 < few < many
    box.get_by_label("Filter").fill("seed")
    assert 0 < box.locator(".box").last.locator("tbody tr").count() < many


def test_a_phone_is_tapped(open_page):
    page = open_page("phone")
    chart = page.locator("#results svg").first
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(100)  # until scrolling has ended
    box = chart.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 20)
    assert page.locator("#tip").is_visible()
    assert page.locator("main svg").first.bounding_box()["width"] <= 390
