"""The report page in a real browser: Debian's chromium, headless. Skipped where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import contrast
from runs_for_tests import made_up_pictures, write_run

from histfl.reports import gather, write_report
from histfl.runs.store import RunFolder

LARGEST_PAGE = 15 * 2**20


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HIST with three seeds, hierarchical FedAvg and HIST over the air."""
    top = tmp_path_factory.mktemp("compared")
    targets = "training.targets=[0.5, 0.99]"
    for seed in (1, 2, 3):
        write_run(top / f"hist-{seed}", f"training.seed={seed}", targets, offset=seed / 100)
    write_run(top / "hfedavg", "method.name=hfedavg", targets)
    write_run(top / "air", "uplink.name=aircomp", targets, error=1e-4)
    write_report(top / "report.html", "compared", gather([top]))
    return top


def test_every_plot_is_drawn(runs: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(runs / "report.html")
    plots = page.locator(".plot")
    assert plots.count() == int(page.evaluate("document.documentElement.dataset.drawn"))
    titles = [plots.nth(index).get_attribute("aria-label") or "" for index in range(plots.count())]
    for subject in (
        "megabytes",
        "seconds",
        "rounds",
        "by part",
        "by cell",
        "submodels",
        "holds it",
        "label",
        "air",
    ):
        assert any(subject in title for title in titles), subject
    drawn = page.evaluate(
        """[...document.querySelectorAll('.plot')].map(div => ({
            marks: div.querySelectorAll('.scatterlayer .trace path, .barlayer path, .heatmaplayer image').length,
            box: div.querySelector('.main-svg').getBoundingClientRect().width}))"""
    )
    assert all(plot["marks"] > 0 and plot["box"] > 200 for plot in drawn)


def test_the_legend_hides_an_arm_with_its_band_and_shows_it_again(
    runs: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(runs / "report.html")
    plot = page.locator("#plot-accuracy-0")
    names = plot.evaluate("div => div._fullData.map(trace => trace.name)")
    assert len(names) == 4  # three lines and a band
    seeds = plot.locator(".legend .traces").filter(has_text="3 seeds").locator(".legendtoggle")
    visible = "div => div._fullData.map(trace => trace.visible)"
    hidden = [("legendonly" if "3 seeds" in name else True) for name in names]
    for expected in (hidden, [True] * 4):
        seeds.click()
        page.wait_for_function(
            f"expected => JSON.stringify(({visible})(document.getElementById('plot-accuracy-0'))) === expected",
            arg=json.dumps(expected, separators=(",", ":")),
        )


def test_the_tables_match_the_summaries(runs: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(runs / "report.html")
    rows = page.locator("#every tbody tr")
    assert rows.count() == 5
    for index in range(5):
        name = rows.nth(index).locator("th").inner_text()
        values = (
            rows.nth(index)
            .locator("td")
            .evaluate_all("cells => cells.map(cell => cell.dataset.value ?? null)")
        )
        summary = RunFolder(runs / name).read_summary()
        half = summary["to_target"]["0.5"]
        keys = ("method", "rounds", "seed", "final_accuracy", "best_accuracy", "megabytes_per_client")
        keys += ("edge_cloud_megabytes", "simulated_seconds", "energy_joules")
        expected = [summary[key] for key in keys]
        expected += [half[key] for key in ("round", "megabytes_per_client", "simulated_seconds")]
        assert values == [*map(str, expected), None, None, None]  # nobody reaches 99%


def test_the_savings_are_in_the_first_screenful(runs: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(runs / "report.html", viewport={"width": 1280, "height": 800})
    for part in (page.locator(".answer"), page.locator("#answer")):
        box = part.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] < 800
    assert "times less" in page.locator(".answer").inner_text()
    assert page.locator("#plot-accuracy-0").bounding_box()["y"] < 800


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(
    runs: Path, open_page: Callable[..., Any], scheme: str
) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "color_scheme": scheme}
    page = open_page(runs / "report.html", **phone)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(ink, paper) > 7
    axis = page.evaluate("getComputedStyle(document.querySelector('.xtitle')).fill")
    assert contrast(axis, paper) > 7


def test_it_prints_in_dark_ink_within_the_paper_also_from_a_dark_screen(
    runs: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(runs / "report.html", color_scheme="dark", viewport={"width": 1400, "height": 900})
    look = """() => [...document.querySelectorAll('.plot')].map(div => ({
        width: div.querySelector('.main-svg').getBoundingClientRect().width,
        ink: getComputedStyle(div.querySelector('.xtitle')).fill}))"""
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = ({look})(); }})")
    before = page.evaluate(look)
    assert page.pdf(format="A4")[:5] == b"%PDF-"
    printed = page.evaluate("window.printed")
    assert all(plot["width"] <= 700 and contrast(plot["ink"], "rgb(255,255,255)") > 7 for plot in printed)
    page.wait_for_function(
        f"expected => JSON.stringify(({look})()) === expected", arg=json.dumps(before, separators=(",", ":"))
    )
    page.emulate_media(media="print", color_scheme="dark")
    assert contrast(page.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(255,255,255)") == 1


def test_hostile_names_are_shown_as_text(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    attack = "<img src=x onerror=alert(1)><script>alert(2)<"  # a folder's name cannot hold a slash
    folder = write_run(tmp_path / attack)
    pictures = made_up_pictures(
        4, layer="</script><script>alert(3)</script>", label='"><svg onload=alert(4)>'
    )
    (folder / "pictures.json").write_text(json.dumps(pictures))
    write_run(tmp_path / "tame", "method.name=hfedavg")  # two runs, so that there is a legend
    (tmp_path / "<b onclick=alert(5)>").mkdir()
    write_report(tmp_path / "report.html", "</title><script>alert(6)</script>", gather([tmp_path]))
    page = open_page(tmp_path / "report.html")
    assert page.title() == "</title><script>alert(6)</script>"
    assert page.locator("#answer tbody th").first.inner_text() == attack
    assert page.locator("#broken b").inner_text() == "<b onclick=alert(5)>"
    assert (page.locator("#plot-accuracy-0 .legendtext").first.text_content() or "").startswith("<img src=x")
    assert page.locator("#plot-partition-0-0 g.ytick").text_content() == "</script><script>alert(3)</script>"
    assert page.locator("main img, main b[onclick], main svg[onload]").count() == 0


def test_a_script_that_got_in_would_not_run(runs: Path, tmp_path: Path, browser: Any) -> None:
    text = (runs / "report.html").read_text("utf-8")
    (tmp_path / "changed.html").write_text(
        text.replace("<main>", "<main><script>window.inside = 1</script>", 1), "utf-8"
    )
    page = browser.new_page()
    page.goto((tmp_path / "changed.html").as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert page.evaluate("window.inside") is None
    page.close()


def test_broken_runs_are_named_on_the_page(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    write_run(tmp_path / "good")
    (write_run(tmp_path / "half") / "summary.json").write_text("{")
    (tmp_path / "empty").mkdir()
    write_report(tmp_path / "report.html", "some", gather([tmp_path]))
    page = open_page(tmp_path / "report.html")
    assert page.locator("#broken b").all_inner_texts() == ["empty", "half"]
    assert page.locator("#answer tbody th").all_inner_texts() == ["good"]


def test_a_large_sweep_stays_small(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    """Forty runs of five hundred rounds: eight groups, five seeds each."""
    for cells in (2, 4, 5, 10):
        for method in ("hist", "hfedavg"):
            for seed in range(5):
                settings = (f"network.cells={cells}", f"method.name={method}", f"training.seed={seed}")
                write_run(tmp_path / "+".join(settings), *settings, rounds=500, offset=seed / 100)
    write_report(tmp_path / "report.html", "sweep", gather([tmp_path]))
    assert (tmp_path / "report.html").stat().st_size < LARGEST_PAGE
    page = open_page(tmp_path / "report.html")
    assert page.locator("#answer tbody tr").count() == 8
    assert page.locator("#every tbody tr").count() == 40
