"""The page in a real browser: clicks, sliders, comparison, a hostile repository, keyboard, narrow screen, dark mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zarr
from tests.view.samples import find_browser, hostile, temperature, weather

import icefloe
from icefloe.ingest import pyramid_local
from icefloe.view.server import ViewServer

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
expect = playwright.expect
# Machines that run tests are shared and slow at times.
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(
        find_browser() is None,
        reason="no Chromium: install one (Debian: apt-get install chromium), or set ICEFLOE_BROWSER to its path",
    ),
]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ViewServer]:
    with ViewServer(weather()) as server:
        yield server


@pytest.fixture(scope="module")
def dangerous() -> Iterator[ViewServer]:
    with ViewServer(hostile()) as server:
        yield server


@pytest.fixture
def show(browser: Any, server: ViewServer) -> Iterator[Open]:
    """Opens an address of the viewer in a new page. Errors of the page fail the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def show(address: str = "", at: ViewServer = server, size: tuple[int, int] = (1200, 800), **options: Any) -> Any:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        page.goto(at.url + address)
        return page

    yield show
    for context in contexts:
        context.close()
    assert problems == []


def status(page: Any) -> Any:
    return page.locator("p.status").first


def pixel(page: Any, x: float, y: float) -> list[int]:
    """The colour of a map at a part of its width and height."""
    script = """([x, y]) => { const c = document.querySelector('canvas.plot');
        return [...c.getContext('2d').getImageData(Math.round(c.width * x), Math.round(c.height * y), 1, 1).data]; }"""
    found: list[int] = page.evaluate(script, [x, y])
    return found


def wait_until(page: Any, condition: Callable[[], bool]) -> None:
    """Wait for a condition. The policy of the page allows no script that would wait for it there."""
    for _ in range(WAIT_MS // 100):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("the page did not change in time")


def test_the_tree_leads_to_a_map_with_values_under_the_pointer(show: Open) -> None:
    page = show()
    page.get_by_role("treeitem", name="t2m").locator("a").first.click()
    expect(page.get_by_role("tab", name="Map")).to_have_attribute("aria-selected", "true")
    expect(page.locator("h1")).to_have_text("t2m")
    expect(status(page)).to_contain_text("1 missing value")
    expect(page.locator("output")).to_have_text("2020-01-01  [0]")
    canvas = page.locator("canvas.plot")
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 0.5, "y": box["height"] * 0.3})
    expect(page.locator(".tip strong")).to_have_text(re.compile(r"^2\d\d(\.\d+)? K$"))
    assert pixel(page, 0.3, 0.2) != pixel(page, 0.3, 0.7)
    expect(page.get_by_label("Coastlines")).to_be_checked()


def test_a_slider_changes_the_slice_and_the_address(show: Open) -> None:
    page = show("#/data/t2m")
    slider = page.get_by_role("slider", name="time")
    expect(status(page)).to_contain_text("read")
    before = pixel(page, 0.5, 0.5)
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("output")).to_have_text("2020-01-01 18:00  [3]")
    slider.evaluate("input => { input.value = 11; input.dispatchEvent(new Event('input')); }")
    expect(page.locator("output")).to_have_text("2020-01-03 18:00  [11]")
    expect(page).to_have_url(re.compile(r"i=11%2C0%2C0"))
    assert pixel(page, 0.5, 0.5) != before
    low, high = temperature()[11].min(), temperature()[11].max()
    expect(status(page)).to_contain_text(f"{float(f'{low:.5g}'):g} to {float(f'{high:.5g}'):g}")


def test_the_map_zooms_pans_and_shows_the_series_of_a_point(show: Open) -> None:
    page = show("#/data/t2m")
    expect(status(page)).to_contain_text("read")
    before = [pixel(page, x, 0.3) for x in (0.2, 0.5, 0.8)]
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    zoomed = [pixel(page, x, 0.3) for x in (0.2, 0.5, 0.8)]
    assert zoomed != before
    canvas = page.locator("canvas.plot")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 600, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 100, steps=4)
    page.mouse.up()
    assert [pixel(page, x, 0.3) for x in (0.2, 0.5, 0.8)] != zoomed
    page.get_by_role("button", name="Show all").click()
    assert [pixel(page, x, 0.3) for x in (0.2, 0.5, 0.8)] == before
    canvas.click(position={"x": 300, "y": 150})
    expect(page.locator(".point h2")).to_contain_text("At latitude")
    expect(page.locator(".point canvas")).to_be_visible()


@pytest.fixture(scope="module")
def detailed() -> Iterator[ViewServer]:
    """An array with more cells than the screen has pixels, and overviews that have other values."""
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    with repository.transaction("main", message="cells") as store:
        values = np.full((1600, 3200), 200, dtype="u1")
        values[::2, ::2] = 50
        zarr.create_array(store, name="a", data=values, chunks=(400, 400), dimension_names=["y", "x"])
    pyramid_local(repository, "a", 3, "nearest")
    with ViewServer(repository) as server:
        yield server


def test_the_map_of_a_large_array_is_drawn_from_its_overviews(show: Open, detailed: ViewServer) -> None:
    page = show("#/data/a", at=detailed)
    expect(status(page)).to_contain_text(re.compile(r"overview [123] \(nearest of (2×2|4×4|8×8) values\)"))
    # The overviews only have the cells with 50.
    expect(status(page)).not_to_contain_text("200")
    # Zooming in reads the cells themselves, which have two colours.
    colours = """() => { const c = document.querySelector('canvas.plot'), d = c.getContext('2d');
        const at = (x, y) => String(d.getImageData(Math.round(c.width * x), Math.round(c.height * y), 1, 1).data);
        const parts = [0.4, 0.43, 0.46, 0.49, 0.52, 0.55, 0.58, 0.61];
        return new Set(parts.flatMap((x) => parts.map((y) => at(x, y)))).size; }"""
    assert page.evaluate(colours) == 1
    for _ in range(8):
        page.get_by_role("button", name="Zoom in").click()
    wait_until(page, lambda: page.evaluate(colours) > 1)
    page.get_by_role("button", name="Show all").click()
    wait_until(page, lambda: page.evaluate(colours) == 1)


def test_the_map_is_usable_with_the_keyboard(show: Open) -> None:
    page = show("#/data/t2m")
    expect(status(page)).to_contain_text("read")
    page.locator("canvas.plot").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("latitude 0°")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".tip")).to_contain_text("latitude 10°N")
    page.keyboard.press("+")
    page.keyboard.press("0")
    page.get_by_role("tab", name="Map").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Lines")).to_be_focused()
    expect(page.get_by_role("tab", name="Lines")).to_have_attribute("aria-selected", "true")


def test_the_tree_is_walked_with_arrow_keys(show: Open) -> None:
    page = show()
    expect(page.get_by_role("treeitem", name="model")).to_be_visible()
    page.locator(".tree a.row").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    for _ in range(5):
        page.keyboard.press("ArrowDown")
        if page.evaluate("document.activeElement.textContent").startswith("▸model"):
            break
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("treeitem", name="run")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/data/model/run$"))
    expect(page.get_by_role("heading", name="run")).to_be_visible()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_lines_tables_chunks_and_metadata_are_shown(show: Open) -> None:
    page = show("#/data/t2m?view=lines")
    expect(status(page)).to_contain_text("12 values")
    page.get_by_role("tab", name="Table").click()
    expect(page.locator("table.values thead")).to_contain_text("longitude")
    expect(page.locator("table.values tbody tr").first.locator("td").first).to_have_text(
        f"{temperature()[0, 0, 0]:.7g}"
    )
    expect(page.locator("td.missing")).to_have_count(0)
    page.get_by_role("button", name="Later columns").click()
    expect(page.locator("td.missing")).to_have_count(1)
    page.get_by_role("tab", name="Chunks").click()
    expect(page.locator(".chunkmap")).to_contain_text("4 chunks written")
    page.get_by_label("Colour by").select_option("commit")
    expect(page.locator(".legend")).to_contain_text("coordinates and temperature")
    page.locator(".chunkmap canvas").hover(position={"x": 5, "y": 5})
    expect(page.locator("p.status").last).to_contain_text("written by")
    page.get_by_role("tab", name="About").click()
    expect(page.locator("table.facts").first).to_contain_text("4 × 10 × 18")


def test_two_branches_are_compared(show: Open) -> None:
    page = show("#/data/t2m?ref=warmer&view=compare&from=v1")
    expect(page.locator("#changed-chunks")).to_have_text("1 chunk differs")
    expect(page.locator("p.status").last).to_contain_text("180 values differ, by up to 2 K. 1 changed chunk")
    assert page.locator("figure canvas.plot").count() == 3
    page.get_by_role("slider", name="time").evaluate(
        "input => { input.value = 8; input.dispatchEvent(new Event('input')); }"
    )
    expect(page.locator("p.status").last).to_contain_text("0 values differ")


def test_two_commits_of_the_history_are_compared(show: Open) -> None:
    page = show("#/history/")
    expect(page.locator(".commits li")).to_have_count(6)
    assert page.locator("path.merge").count() == 1
    expect(page.locator(".details h2").first).to_have_text("merge qc")
    page.get_by_role("button", name=re.compile("warmer in the first chunk")).click()
    expect(page.locator(".details .changes")).to_contain_text("1 chunk")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".details h2").first).not_to_have_text("warmer in the first chunk")
    page.get_by_label(re.compile("Compare .*: coordinates and temperature")).check()
    page.get_by_label(re.compile("Compare .*: warmer in the first chunk")).check()
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.locator("h1")).to_have_text("Comparison")
    page.locator(".changes a", has_text="/t2m").click()
    expect(page.locator("#changed-chunks")).to_have_text("1 chunk differs")


def test_refs_and_times_can_be_chosen(show: Open) -> None:
    page = show("#/data/")
    expect(page.get_by_role("treeitem", name="humidity")).to_be_visible()
    page.get_by_label("Branch, tag or snapshot").select_option("v1")
    expect(page.get_by_role("treeitem", name="t2m")).to_be_visible()
    expect(page.get_by_role("treeitem", name="humidity")).to_have_count(0)
    page.get_by_label("Branch, tag or snapshot").select_option("main")
    page.get_by_role("button", name="Look for new commits").click()
    expect(page.locator("#notice")).to_have_text("No new commits.")
    page.get_by_role("button", name="Show the branch at a time").click()
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_label("Branch, tag or snapshot")).to_have_value(re.compile(r"^main@"))
    expect(page.get_by_role("treeitem", name="humidity")).to_be_visible()


def test_storage_and_maintenance_are_shown(show: Open) -> None:
    page = show("#/storage/")
    expect(page.locator("svg.treemap a").first).to_be_visible()
    expect(page.locator("svg.growth circle")).to_have_count(4)
    page.get_by_role("link", name="Maintenance").click()
    expect(page.locator("h1")).to_have_text("Maintenance")
    expect(page.locator("table.values")).to_contain_text("manifests")


def test_texts_of_a_hostile_repository_stay_texts(show: Open, dangerous: ViewServer) -> None:
    page = show("", at=dangerous)
    expect(page.get_by_role("treeitem", name="wild")).to_be_visible()
    hashes = page.evaluate("[...document.querySelectorAll('.tree a.row')].map(a => a.getAttribute('href'))")
    assert len(hashes) >= 14
    for address in [*hashes, "#/history/", "#/storage/", "#/maintenance/", "#/data/texts?view=table", "#/data/pairs"]:
        page.goto(dangerous.url + address)
        page.wait_for_load_state("networkidle")
    for view in ("map", "lines", "table", "chunks", "compare", "about"):
        name = next(each for each in hashes if "bold" in each)
        page.goto(f"{dangerous.url}{name}?view={view}")
        page.wait_for_load_state("networkidle")
    assert page.title() != "hacked"
    assert page.evaluate("document.querySelectorAll('main script, main b, main img').length") == 0


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("wild?view=map", "−1e300 to 1e300"),
        ("missing?view=map", "all values are missing"),
        ("empty", "This array has no values"),
        ("scalar", "7.5"),
        ("deep?view=map", "0 to"),
        ("texts", "plain"),
        ("days?view=lines", "2 values"),
    ],
)
def test_unusual_arrays_are_shown(show: Open, dangerous: ViewServer, path: str, text: str) -> None:
    page = show(f"#/data/{path}", at=dangerous)
    expect(page.locator("section.panel")).to_contain_text(text)


def test_errors_are_told_in_the_page(browser: Any, server: ViewServer) -> None:
    page = browser.new_page()
    page.goto(f"{server.url}#/data/nowhere")
    expect(page.get_by_role("alert")).to_contain_text("there is no array or group at '/nowhere'")
    page.goto(f"{server.url}#/data/?ref=nothing")
    expect(page.get_by_role("alert")).to_contain_text("'nothing' is not a branch")
    page.close()


def test_a_narrow_screen_needs_no_sideways_scrolling(show: Open) -> None:
    page = show(size=(400, 800))
    compare = "#/data/t2m?view=compare&from=v1&ref=warmer"
    for address in ("", "#/data/t2m", compare, "#/data/t2m?view=chunks", "#/history/", "#/storage/", "#/maintenance/"):
        page.goto(page.url.partition("#")[0] + address)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, address


def contrast(one: str, two: str) -> float:
    """The contrast ratio of two CSS colours, as WCAG defines it."""

    def luminance(text: str) -> float:
        parts = np.array([int(each) for each in re.findall(r"\d+", text)[:3]]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast_in_both_themes(show: Open, scheme: str) -> None:
    page = show("#/history/", color_scheme=scheme)
    expect(page.locator(".details h2").first).to_be_visible()
    found = page.evaluate(
        """() => [...document.querySelectorAll('h1,h2,p,a,button,th,td,.dim,.badge,label')].map((node) => {
            let back = node; let colour = 'rgba(0, 0, 0, 0)';
            while (back && /, 0\\)$/.test(colour)) {
                colour = getComputedStyle(back).backgroundColor; back = back.parentElement; }
            return [node.textContent.slice(0, 30), getComputedStyle(node).color, colour]; })"""
    )
    assert len(found) > 20
    weak = [(text, round(contrast(front, back), 2)) for text, front, back in found if contrast(front, back) < 4.5]
    assert weak == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(background, "rgb(0,0,0)") < 3) is (scheme == "dark")


def test_the_theme_can_be_switched_and_is_kept(show: Open) -> None:
    page = show("#/data/")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert after != before
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


def test_controls_have_names(show: Open) -> None:
    page = show()
    for address in ("#/data/t2m", "#/history/", "#/maintenance/"):
        page.goto(page.url.partition("#")[0] + address)
        page.wait_for_load_state("networkidle")
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('button,a,input,select,canvas[role]')].filter((node) =>
                !(node.textContent.trim() || node.getAttribute('aria-label') || node.labels?.length || node.title))
                .map((node) => node.outerHTML)"""
        )
        assert unnamed == []
