"""Pages of many arms, plans, label mixes and reproductions in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import contrast
from runs_for_tests import write_run

from histfl.planning.request import PlanRequest, make_plan
from histfl.planning.show import draw_plan
from histfl.reports import gather, write_report
from histfl.reports.pictures import draw_label_mix, label_mix_of
from histfl.reproduce.files import run_results
from histfl.reproduce.pages import answer_page
from histfl.reproduce.registry import artefacts, scale_for
from histfl.runs.loading import load_config


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen arms of two seeds: method, learning rate and local steps."""
    top = tmp_path_factory.mktemp("many")
    for place, rate in enumerate((0.005, 0.01, 0.02, 0.05)):
        for method in ("hist", "hfedavg"):
            for steps in (4, 12):
                for seed in (1, 2):
                    settings = (
                        f"method.name={method}",
                        f"training.learning_rate={rate}",
                        f"training.local_steps={steps}",
                        f"training.seed={seed}",
                    )
                    offset = place / 20 - 0.12 + seed / 100
                    write_run(top / "+".join(settings), *settings, "training.targets=[0.5]", offset=offset)
    write_report(top / "report.html", "many", gather([top]))
    return top


LINES = """id => document.getElementById(id)._fullData.filter(trace => trace.fill !== 'toself' && trace.visible === true)
    .map(trace => [trace.name, trace.line.color, trace.line.dash])"""


def test_chips_filter_plots_and_tables_and_the_looks_can_be_changed(
    many: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(many / "report.html", viewport={"width": 1400, "height": 900})

    def lines() -> Any:
        return page.evaluate(LINES, "plot-accuracy-0")

    assert page.locator("#plot-accuracy-0 .legend").count() == 0  # the chips are the legend
    assert len({tuple(line[1:]) for line in lines()}) == 4 * 2
    _click(page, "button[data-factor]:has-text('hist')")
    _click(page, "button[data-factor]:has-text('0.05')")
    expected = {"hist, learning_rate=0.05, local_steps=4", "hist, learning_rate=0.05, local_steps=12"}
    assert {name for name, *_ in lines()} == expected
    assert page.locator("#shown").inner_text() == "2 of 16 shown"
    for table, rows in (("#answer", 2), ("#scatter", 2), ("#every", 4)):
        assert page.locator(f"{table} tbody tr:visible").count() == rows
    bars = page.evaluate("document.getElementById('plot-latency-0')._fullLayout.yaxis.ticktext")
    assert set(bars) == expected
    bands = "div => div._fullData.filter(trace => trace.fill === 'toself' && trace.visible === true).length"
    assert page.locator("#plot-accuracy-0").evaluate(bands) == 2  # few enough to be told apart
    page.evaluate("delete document.documentElement.dataset.drawn")
    page.locator("select[data-look=colour]").select_option(label="local_steps")
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert len({colour for _, colour, _ in lines()}) == 2
    _click(page, "#all")
    assert len(lines()) == 16


def test_tables_are_sorted_by_a_click_on_a_heading(many: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(many / "report.html", viewport={"width": 1400, "height": 900})

    def column(number: int) -> list[Any]:
        read = "(cells) => cells.map(cell => cell.dataset.value === undefined ? null : Number(cell.dataset.value))"
        return list(page.locator(f"#answer tbody td:nth-child({number})").evaluate_all(read))

    best_first = column(7)  # megabytes to the target
    known = [value for value in best_first if value is not None]
    assert best_first == [*sorted(known), *[None] * (16 - len(known))]
    assert 0 < len(known) < 16
    accuracy = page.locator("#answer thead tr:last-child th").nth(1)
    accuracy.locator("button").click()
    assert column(2) == sorted(column(2))
    accuracy.locator("button").click()
    assert (column(2), accuracy.get_attribute("aria-sort")) == (sorted(column(2), reverse=True), "descending")
    page.locator("#answer thead tr:last-child th").nth(6).locator("button").click()
    assert column(7) == best_first  # what is missing comes last


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_of_many_arms_is_cut_off(many: Path, open_page: Callable[..., Any], width: int) -> None:
    page = open_page(many / "report.html", viewport={"width": width, "height": 900}, has_touch=width < 1000)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(
        """[...document.querySelectorAll('.caption, .controls, .controls button, .plot .main-svg, .answer')]
            .map(part => part.getBoundingClientRect()).map(box => [box.left, box.right])"""
    )
    assert all(left >= 0 and right <= width for left, right in boxes)
    if width == 1400:
        for table in ("#answer", "#scatter", "#every"):
            wide, room = page.locator(f".scroll:has({table})").evaluate(
                "box => [box.scrollWidth, box.clientWidth]"
            )
            assert wide <= room, table
    # no figure leaves half of its row empty
    blank = page.evaluate(
        """[...document.querySelectorAll('.grid')].filter(grid => {
            const last = grid.lastElementChild.getBoundingClientRect(), all = grid.getBoundingClientRect();
            return all.right - last.right > 2; }).length"""
    )
    assert blank == 0


BROKEN_WORDS = """() => [...document.querySelectorAll('tr > :first-child, summary')].flatMap(cell => {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
    for (let text; (text = texts.nextNode()); ) for (const word of text.data.matchAll(/[^\\s\\u200b]+/g)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
    return broken; })"""


@pytest.mark.parametrize("width", [1400, 390])
def test_names_do_not_break_within_words(many: Path, open_page: Callable[..., Any], width: int) -> None:
    page = open_page(many / "report.html", viewport={"width": width, "height": 900})
    assert page.evaluate(BROKEN_WORDS) == []


@pytest.mark.parametrize("width", [1400, 390])
def test_names_of_bars_and_clients_have_room(many: Path, open_page: Callable[..., Any], width: int) -> None:
    page = open_page(many / "report.html", viewport={"width": width, "height": 900})
    boxes = """([id, ticks]) => [...document.querySelectorAll(`#${id} .${ticks} text`)]
        .map(text => text.getBoundingClientRect()).map(box => [box.top, box.bottom, box.left, box.right])"""
    names = sorted(page.evaluate(boxes, ["plot-latency-0", "ytick"]))
    assert len(names) == 16
    assert all(above[1] <= below[0] + 1 for above, below in pairwise(names))
    shown = page.locator("#plot-latency-0 .ytick").first.text_content()
    assert shown.replace(" ", "") == "hfedavg,learning_rate=0.005,local_steps=12"
    clients = sorted(page.evaluate(boxes, ["plot-labels-0-0", "xtick"]), key=lambda box: box[2])
    assert len(clients) >= 3
    assert all(one[3] <= other[2] for one, other in pairwise(clients))
    drawn = page.locator("#plot-labels-0-0 .heatmaplayer image").bounding_box()
    assert drawn["width"] > 0.55 * width


@pytest.fixture(scope="module")
def other_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plan, a label mix and a reproduction; the bound's page is made in the same way."""
    top = tmp_path_factory.mktemp("pages")
    draw_plan(make_plan(PlanRequest("paper", None, ("model.hidden=40",), 2), "cells=2,4"), top / "plan.html")
    draw_label_mix(label_mix_of(load_config("quickstart"), None), top / "mix.html")
    (artefact,) = artefacts(["fig4"], scale_for(quick=True))
    results = run_results(artefact, top / "nothing")
    text = answer_page(artefact, artefact.rows(results), artefact.panels(results))
    (top / "fig4.html").write_text(text, "utf-8")
    return {path.stem: path for path in top.glob("*.html")}


@pytest.mark.parametrize("name", ["plan", "mix", "fig4"])
def test_every_page_has_the_same_frame(
    other_pages: dict[str, Path], open_page: Callable[..., Any], name: str
) -> None:
    page = open_page(other_pages[name], color_scheme="dark", viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title() == page.locator("h1").inner_text() != ""
    assert page.locator("meta[name=viewport]").count() == 1
    assert page.evaluate(BROKEN_WORDS) == []
    assert page.locator(".answer").bounding_box()["y"] < 200  # the answer first
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(ink, paper) > 7
    titles = page.locator(".plot").evaluate_all(
        "plots => plots.map(p => [p.layout.xaxis.title, p.layout.yaxis.title])"
    )
    assert all(axis and axis["text"] for both in titles for axis in both)
    if name == "fig4":
        choices = page.locator("li").filter(has_text="plain SGD").inner_text()
        assert "learning rate 0.05 (at the full size 0.01)" in choices
        assert page.locator("h2", has_text="Choices, but for what was made smaller").count() == 1
    if name == "plan":  # a logarithmic axis names 20 and 50 in full
        read = "texts => texts.map(text => [-text.getBoundingClientRect().y, Number(text.textContent)])"
        ticks = sorted(page.locator("#plot-plan-1 .ytick text").evaluate_all(read))
        numbers = [number for _, number in ticks]
        assert len(numbers) > 1
        assert numbers == sorted(numbers)


def _click(page: Any, what: str) -> None:
    """Click, and wait until all is drawn again."""
    page.evaluate("delete document.documentElement.dataset.drawn")
    page.locator(what).first.click()
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=60_000)


def test_on_paper_long_names_take_another_line_between_their_settings_alone(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    settings = "method.name=hfedavg", "training.learning_rate=0.005", "uplink.name=aircomp"
    write_run(tmp_path / "+".join(settings), *settings, "training.targets=[0.3, 0.4, 0.5]")
    write_report(tmp_path / "report.html", "long", gather([tmp_path]))
    page = open_page(tmp_path / "report.html", viewport={"width": 680, "height": 900})
    page.emulate_media(media="print")
    lines = page.evaluate(
        """[...document.querySelector('#every tbody th').childNodes].filter(node => node.nodeType === 3).map(text => {
            const range = document.createRange();
            range.selectNodeContents(text);
            return [text.textContent, range.getClientRects().length];
        })"""
    )
    assert lines == [[f"{settings[0]}+", 1], [f"{settings[1]}+", 1], [settings[2], 1]]
