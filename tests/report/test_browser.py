"""The page in a real browser: nothing fetched, no error, charts there, and everything answers to mouse and keys."""

import json
import shutil
from pathlib import Path

import pytest
from report_records import HOSTILE, big, of_kind, sweep_records, write_trace

import normgrowth as ng
from normgrowth.records import Block, Records
from normgrowth.stored_result import StoredResult


def report(folders, path, **options):
    return ng.report(folders, path, fit=False, **options).path


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(
            f"no browser here: one of {', '.join(BROWSERS)} is wanted (Debian: apt-get install chromium)"
        )
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    """Opens a page, and in the end sees that it fetched nothing and complained of nothing."""
    contexts = []
    said = []

    def opened(path: Path, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        address = path.as_uri()
        page.on("console", lambda message: said.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != address else None)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def drawn(page, name):
    """The plot of a chart, when it is there."""
    page.locator(f"#{name}").scroll_into_view_if_needed()
    plot = page.locator(f"#{name} .plot[data-drawn=yes]")
    plot.wait_for()
    return plot


def model(page, expression):
    """Something of the plot that was drawn last, as the library holds it."""
    return page.evaluate(
        f"(() => {{ const plot = Bokeh.documents.at(-1).roots()[0]; return {expression}; }})()"
    )


@pytest.fixture
def one(trace, tmp_path):
    write_trace(trace(layers=6, steps=40), tmp_path / "walk")
    return report([tmp_path / "walk"], tmp_path / "p.html")


@pytest.fixture
def two(trace, tmp_path):
    write_trace(trace(layers=3, steps=20), tmp_path / "a")
    write_trace(trace(layers=3, steps=20, seed=1), tmp_path / "b")
    return report([tmp_path / "a", tmp_path / "b"], tmp_path / "p.html")


def test_every_chart_is_drawn_with_its_numbers(one, open_page):
    page = open_page(one)
    names = page.locator("figure").evaluate_all("all => all.map((one) => one.id)")
    assert {"norm", "layers", "cosine", "alignment", "budget", "roles"} <= set(names)
    for name in names:
        drawn(page, name)
    _, norms = Records.read(one.parent / "walk").series("norm")
    drawn_norms = page.evaluate("Array.from(Bokeh.documents[0].roots()[0].renderers[0].data_source.data.y)")
    assert drawn_norms == pytest.approx(norms, rel=1e-6)
    # Pixels, not only models: something in the canvas is colored.
    image = page.locator("#norm .plot").screenshot()
    assert len(set(image)) > 50
    assert len(image) > 5000


def test_layers_are_switched_one_by_one_and_found_by_name(one, open_page):
    page = open_page(one)
    plot = drawn(page, "layers")
    assert plot.get_attribute("data-visible") == "6"
    box = page.locator("#layers li", has_text="layer.3").get_by_role("checkbox")
    box.uncheck()
    assert plot.get_attribute("data-visible") == "5"
    assert model(page, "plot.renderers.filter((one) => one.visible).length") in (5, 7)
    page.locator("#layers input[type=search]").fill("layer.1")
    page.locator("#layers").get_by_text("hide all").click()
    assert plot.get_attribute("data-visible") == "4"
    page.locator("#layers input[type=search]").fill("")
    page.locator("#layers").get_by_text("show all").click()
    assert plot.get_attribute("data-visible") == "6"


def test_runs_are_switched_everywhere_at_once(two, open_page):
    page = open_page(two)
    layers, norm = drawn(page, "layers"), drawn(page, "norm")
    page.locator("#choices").get_by_label("run (b)").uncheck()
    assert (norm.get_attribute("data-visible"), layers.get_attribute("data-visible")) == ("1", "3")
    later = drawn(page, "cosine")  # drawn after the choice
    assert later.get_attribute("data-visible") == "4"


def test_axes_go_from_linear_to_logarithmic_and_root(one, open_page):
    page = open_page(one)
    drawn(page, "norm")
    assert model(page, "plot.y_scale.type") == "LinearScale"
    page.locator("#norm").get_by_label("logarithmic").check()
    page.wait_for_function("Bokeh.documents.at(-1).roots()[0].y_scale.type === 'LogScale'")
    page.locator("#choices select").select_option("root")
    page.wait_for_timeout(300)
    ends = page.evaluate(
        """Bokeh.documents.flatMap((d) => d.roots()).filter((p) => p.below[0].axis_label.includes("root"))
        .map((p) => { const x = p.renderers[0].data_source.data.x; return x[x.length - 1]; })"""
    )
    last = Records.read(one.parent / "walk").series("norm")[0][-1]
    assert ends
    assert ends == pytest.approx([float(last) ** 0.5] * len(ends))
    page.locator("#choices select").select_option("log")
    page.wait_for_function("Bokeh.documents.at(-1).roots()[0].x_scale.type === 'LogScale'")


def test_tables_sort_numbers_as_numbers_and_leave_gaps_last(trace, tmp_path, open_page):
    tensors = ["small", "large", "gone", "middle"]
    values = [[1.0, 1.0, float("nan"), 1.0], [2.0, 1000.0, float("nan"), 30.0]]
    block = Block("tensor", tensors, [None] * 4, ["norm"] * 4, [0, 2000], {"norm": _array(values)})
    parts = [trace(layers=12, steps=2), Records.from_blocks("run", [block])]
    StoredResult(Records.joined(parts), of_kind("trace")).write(tmp_path / "x")
    page = open_page(report([tmp_path / "x"], tmp_path / "p.html"))
    table = page.get_by_role("region", name="Tensors")
    first = table.locator("tbody tr td:first-child")
    for expected in (["small", "middle", "large", "gone"], ["large", "middle", "small", "gone"]):
        table.get_by_role("button", name="norm at last").click()
        assert first.all_inner_texts() == expected
    table.get_by_role("button", name="tensor").click()
    assert first.all_inner_texts() == ["gone", "large", "middle", "small"]
    layers = page.get_by_role("region", name="Layers")
    layers.get_by_role("button", name="layer").click()
    names = layers.locator("tbody tr td:first-child").all_inner_texts()
    assert names[:3] == ["layer.0", "layer.1", "layer.2"]  # and layer.10 behind layer.9
    assert names[10] == "layer.10"
    assert layers.locator("th").first.get_attribute("aria-sort") == "ascending"


def _array(values):
    import numpy as np

    return np.array(values)


def test_hostile_names_stay_names(trace, tmp_path, open_page):
    records = trace(layers=len(HOSTILE), steps=5, names=list(HOSTILE))
    write_trace(records, tmp_path / "x", {"notes": list(HOSTILE)})
    page = open_page(report([tmp_path / "x"], tmp_path / "p.html", title=HOSTILE[0]))
    plot = drawn(page, "layers")
    listed = page.locator("#layers li").all_inner_texts()
    assert listed[0].strip() == HOSTILE[0]
    assert any("\\u202e" in name for name in listed)
    # Under the mouse, too: each curve says its name as text.
    box = plot.bounding_box()
    shown = set()
    for share in range(5, 95):
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * share / 100)
        page.wait_for_timeout(20)
        shown |= set(page.evaluate(TIPS))
    assert any("window.hacked" in tip for tip in shown)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


# Texts of what hovers, wherever the library keeps it: it draws in shadow roots.
TIPS = """(() => { const found = []; const walk = (node) => { for (const one of node.querySelectorAll("*")) {
  if (one.classList.contains("bk-tooltip-content")) found.push(one.textContent);
  if (one.shadowRoot) walk(one.shadowRoot); } }; walk(document); return found; })()"""


def test_hovering_tells_the_value(one, open_page):
    page = open_page(one)
    box = drawn(page, "norm").bounding_box()
    found = set()
    for share in range(5, 95):
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * share / 100)
        page.wait_for_timeout(15)
        found |= {tip for tip in page.evaluate(TIPS) if "training step" in tip}
    assert found
    assert any("norm" in tip for tip in found)


def test_a_thousand_tensors_are_there_when_they_are_wanted(tmp_path, open_page):
    page = open_page(report([big(tmp_path / "big")], tmp_path / "p.html"))
    plot = drawn(page, "tensors")
    assert plot.get_attribute("data-visible") == "8"
    page.locator("#tensors summary").click()
    page.locator("#tensors input[type=search]").fill("projection_0123")
    assert page.locator("#tensors li:visible").count() == 1
    page.locator("#tensors li:visible").get_by_role("checkbox").check()
    assert plot.get_attribute("data-visible") in ("8", "9")  # it may be one of the first
    page.locator("#tensors input[type=search]").fill("projection_01")
    page.locator("#tensors").get_by_text("show all").click()  # a hundred at once
    page.wait_for_function("document.querySelector('#tensors .plot').dataset.visible >= 100")
    page.mouse.wheel(0, 20000)
    page.wait_for_timeout(200)
    assert page.evaluate("scrollY") > 1000


def test_dark_follows_the_system_and_the_button(one, open_page):
    page = open_page(one, color_scheme="dark")
    drawn(page, "norm")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert model(page, "plot.background_fill_color") == "#16191d"
    page.get_by_role("button", name="dark").click()
    page.wait_for_function("Bokeh.documents.at(-1).roots()[0].background_fill_color === '#ffffff'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    for _ in range(4):
        page.get_by_role("button", name="dark").click()
    page.wait_for_timeout(500)
    assert page.evaluate("Bokeh.documents.length") == page.locator(".plot[data-drawn=yes]").count()


def test_on_a_phone_nothing_is_wider_than_the_screen(two, open_page):
    page = open_page(two, viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    drawn(page, "norm")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert model(page, "plot.toolbar.active_drag") is None  # a finger scrolls the page


def test_everything_can_be_reached_with_keys(two, open_page):
    page = open_page(two)
    plot = drawn(page, "norm")
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        what = page.evaluate(
            "[document.activeElement.closest('#choices, #norm')?.id ?? '', document.activeElement.type ?? '']"
        )
        seen.add(tuple(what))
        if what == ["choices", "checkbox"]:
            page.keyboard.press("Space")
            break
    assert ("choices", "select-one") in seen
    page.wait_for_function("document.querySelector('#norm .plot').dataset.visible === '1'")
    assert plot.get_attribute("aria-label").startswith("Norm of the model. run: The norm of the model grew")


def test_a_sweep_is_a_map_with_its_edge(tmp_path, open_page):
    sweep_records(diverged=((2, 3),)).write(tmp_path / "sweep")
    page = open_page(report([tmp_path / "sweep"], tmp_path / "p.html"))
    plot = drawn(page, "phase-0")
    assert plot.get_attribute("data-cells") == "12"
    assert plot.get_attribute("data-visible") == "2"
    box = plot.bounding_box()
    found = set()
    for x in range(15, 95, 10):
        for y in range(15, 90, 10):
            page.mouse.move(box["x"] + box["width"] * x / 100, box["y"] + box["height"] * y / 100)
            page.wait_for_timeout(15)
            found |= set(page.evaluate(TIPS))
    assert any("diverged" in tip for tip in found)
    assert any("×" in tip for tip in found)
    edge = page.evaluate(
        "Bokeh.documents[0].roots()[0].renderers.find((one) => one.name === 'growth ends').data_source.data.said"
    )
    assert edge[:2] == ["growth ends at 0.0200", "growth ends at 0.200"]  # not places on the grid


def test_without_charts_the_page_has_no_library(tmp_path, open_page):
    (tmp_path / "claims.json").write_text(json.dumps(of_kind("reproduction", claims=[])))
    path = report([tmp_path], tmp_path / "p.html")
    assert path.stat().st_size < 100_000
    open_page(path).get_by_role("button", name="dark").click()
