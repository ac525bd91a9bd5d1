"""The page of ``advisor report`` in a real headless Chromium: as its reader uses it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, opened, wait_until_drawn
from report_pages import IMPOSSIBLE, PIPELINE, RECORDED, data_of

from advisor.report.page import answer_page

pytestmark = pytest.mark.browser
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
WIDTHS = (360, 768, 1440, 2560)


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def _written(folder: Path, name: str, data: dict[str, Any]) -> Path:
    path = folder / f"{name}.html"
    path.write_text(answer_page(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recorded(folder: Path) -> tuple[Path, dict[str, Any]]:
    data = data_of(RECORDED)
    return _written(folder, "recorded", data), data


@pytest.fixture(scope="module")
def described(folder: Path) -> tuple[Path, dict[str, Any]]:
    data = data_of(PIPELINE)
    return _written(folder, "described", data), data


def _texts(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).all_inner_texts()
    return found


def prose(text: str) -> str:
    """As the page prints a sentence: bounds in brackets have an en dash, names are as they are."""
    return re.sub(r"\(([\d.,]+)-([\d.,]+)(?=[),])", r"(\1–\2", text)


def _ranges(page: Any) -> list[list[float]]:
    """Bounds of the time axis and of the cost axis, as they are drawn."""
    found: list[list[float]] = page.evaluate("frontAxes(shownRows()).map((axis) => axis.bounds)")
    return found


def test_it_draws_without_an_error_and_asks_for_nothing(
    started: Any, recorded: tuple[Path, dict[str, Any]], described: tuple[Path, dict[str, Any]]
) -> None:
    for path, data in (recorded, described):
        with opened(started, path) as seen:
            assert seen.errors == []
            assert seen.requests == [f"file://{path}"]
            lead = data["answer"]["summary"][0]
            assert seen.page.locator("h1").inner_text() == prose(lead)
            # A chart in a fold is drawn when it is opened.
            for fold in seen.page.locator("main .fold > summary").all():
                if not fold.evaluate("(node) => node.parentNode.open"):
                    fold.click()
            seen.page.wait_for_function(
                "() => [...document.querySelectorAll('.plot')].every("
                "(one) => one.querySelector('svg'))"
            )
            assert seen.page.locator("#front-plot svg[role=img]").count() == 1
            assert seen.errors == []


def test_it_may_not_ask_the_network(started: Any, described: tuple[Path, Any]) -> None:
    with opened(started, described[0]) as seen:
        asked = "fetch('http://127.0.0.1:9/').then(() => 'asked', (error) => error.name)"
        assert seen.page.evaluate(asked) == "TypeError"
        assert any("Content Security Policy" in error for error in seen.errors)


def test_the_table_has_the_records_numbers(
    started: Any, recorded: tuple[Path, dict[str, Any]]
) -> None:
    path, data = recorded
    with opened(started, path) as seen:
        for key, said in data["words"]["candidates"].items():
            row = seen.page.locator(f'#front-table tr[data-key="{key}"]').inner_text()
            for name in ("machines", "where"):
                assert said[name] in row
            for value, bounds in (said["time"], said["cost"]):
                assert value in row
                assert bounds.replace("-", "–") in row


def test_a_heading_sorts_the_table(started: Any, described: tuple[Path, dict[str, Any]]) -> None:
    path, data = described
    by_cost = sorted(data["answer"]["front"], key=lambda row: row["cost_usd"]["value"])
    with opened(started, path) as seen:
        heading = seen.page.locator("#front-table th", has_text="Cost")
        for way, order in (("ascending", by_cost), ("descending", by_cost[::-1])):
            heading.locator("button").press("Enter")
            assert heading.get_attribute("aria-sort") == way
            keys = seen.page.locator("#front-table tr[data-key]").evaluate_all(
                "(rows) => rows.map((row) => row.dataset.key)"
            )
            wanted = [str(row["rank"]) for row in order]
            assert [key for key in keys if key != "here"] == wanted


def test_rows_are_chosen_by_keyboard_and_by_mouse(
    started: Any, described: tuple[Path, dict[str, Any]]
) -> None:
    path, data = described
    said = data["words"]["candidates"]
    with opened(started, path) as seen:
        first = seen.page.locator("#front-table input[type=radio]").first
        first.focus()
        first.press("Space")
        assert said["1"]["machines"] in seen.page.locator("#candidate-title").inner_text()
        seen.page.keyboard.press("ArrowDown")
        assert said["2"]["machines"] in seen.page.locator("#candidate-title").inner_text()
        seen.page.locator('#front-table tr[data-key="1"] td').nth(1).click()
        assert seen.page.evaluate("advisorReport.selected") == "1"
        drawn = said["1"]["layout"]
        assert seen.page.locator("#candidate .cell").count() == drawn["devices"]
        seen.page.locator("[data-fold=layout] > summary").click()
        passes = seen.page.locator("#schedule-plot .pass")
        passes.first.wait_for()
        assert passes.count() == len(drawn["schedule"]["passes"])
        assert seen.errors == []


def test_the_whole_page_can_be_walked_by_keyboard(
    started: Any, described: tuple[Path, dict[str, Any]]
) -> None:
    with opened(started, described[0]) as seen:
        seen.page.evaluate("document.querySelector('[data-fold=filters]').open = true")
        reached = []
        for _ in range(60):
            seen.page.keyboard.press("Tab")
            reached.append(
                seen.page.evaluate(
                    "(() => { const n = document.activeElement;"
                    " const { outlineStyle } = getComputedStyle(n);"
                    " return [n.tagName, n.id, n.type || '', outlineStyle]; })()"
                )
            )
        assert reached[0][0] == "A"  # straight to the report
        wanted = {("BUTTON", "button"), ("INPUT", "checkbox"), ("INPUT", "radio"), ("SUMMARY", "")}
        assert wanted <= {(tag, kind) for tag, _, kind, _ in reached}
        outlines = {o for tag, _, kind, o in reached if tag != "BODY" and kind != "checkbox"}
        assert outlines <= {"solid", "auto"}  # a chip shows its checkbox's focus around itself


def test_filters_hide_the_other_rows_and_points(
    started: Any, described: tuple[Path, dict[str, Any]]
) -> None:
    path, data = described
    rows = data["answer"]["front"]
    provider = rows[0]["configuration"][0]["provider"]
    wanted = [str(one["rank"]) for one in rows if one["configuration"][0]["provider"] == provider]
    with opened(started, path) as seen:
        seen.page.locator("[data-fold=filters] > summary").click()
        box = seen.page.locator(f'input[data-filter="provider"][value="{provider}"]')
        box.check()
        keys = seen.page.locator("#front-table tr[data-key]").evaluate_all(
            "(rows) => rows.map((row) => row.dataset.key)"
        )
        assert [key for key in keys if key != "here"] == wanted
        assert (
            f"{len(wanted)} of {len(rows)} rows" in seen.page.locator("#filter-count").inner_text()
        )
        points = seen.page.locator("#front-plot [data-point]")
        assert points.evaluate_all("(all) => all.map((one) => one.dataset.point).sort()") == (
            sorted(keys)
        )
        box.uncheck()
        assert seen.page.locator("#front-table tr[data-key]").count() >= len(rows)


def test_points_can_be_chosen_and_the_chart_zoomed(
    started: Any, described: tuple[Path, dict[str, Any]]
) -> None:
    path, data = described
    other = next(
        str(one["rank"]) for one in data["answer"]["front"]
        if one["rank"] != data["answer"]["picks"]["best_value"]
    )  # fmt: skip
    with opened(started, path) as seen:
        seen.page.locator("#front-plot").scroll_into_view_if_needed()
        point = seen.page.locator(f'#front-plot [data-point="{other}"]')
        said = data["words"]["candidates"][other]
        machines = said["machines"]
        title = point.locator("title").text_content()
        assert all(one in title for one in (machines, said["time"][0], said["cost"][0]))
        point.locator("circle.band").click()
        seen.page.wait_for_function("(key) => advisorReport.selected === key", arg=other)
        assert machines in seen.page.locator("#candidate-title").inner_text()
        seen.page.locator("#front-plot").scroll_into_view_if_needed()
        before = _ranges(seen.page)
        area = seen.page.locator("#front-plot rect.band").bounding_box()
        seen.page.mouse.move(area["x"] + 0.2 * area["width"], area["y"] + 0.2 * area["height"])
        seen.page.mouse.down()
        seen.page.mouse.move(
            area["x"] + 0.6 * area["width"], area["y"] + 0.7 * area["height"], steps=8
        )
        seen.page.mouse.up()
        (left, right), _ = _ranges(seen.page)
        assert before[0][0] < left < right < before[0][1]
        assert seen.page.locator("#front-plot .xtick").count() > 1
        seen.page.locator("#front-plot .zoom-out").press("Enter")
        assert _ranges(seen.page) == before
        assert seen.errors == []


@pytest.mark.parametrize("width", WIDTHS)
def test_no_width_needs_sideways_scrolling(
    started: Any, recorded: tuple[Path, Any], described: tuple[Path, Any], width: int
) -> None:
    for path, _ in (recorded, described):
        with opened(started, path, width=width) as seen:
            seen.page.evaluate(
                "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
            )
            wide = seen.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width


def test_it_follows_the_readers_scheme_and_the_switch(
    started: Any, described: tuple[Path, Any]
) -> None:
    def lightness(page: Any) -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(","))

    with opened(started, described[0], scheme="dark") as seen:
        assert lightness(seen.page) < 150
        tick = seen.page.locator("#front-plot .xtick").first
        assert tick.evaluate("(node) => getComputedStyle(node).fill") == "rgb(232, 235, 239)"
        seen.page.locator("#theme").click()
        assert lightness(seen.page) > 700
        seen.page.locator("#theme").click()
        assert lightness(seen.page) < 150
    with opened(started, described[0], scheme="light") as seen:
        assert lightness(seen.page) > 700


def test_it_prints(started: Any, recorded: tuple[Path, dict[str, Any]]) -> None:
    with opened(started, recorded[0], scheme="dark") as seen:
        printed = seen.page.pdf()
        assert printed.startswith(b"%PDF")
        assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") >= 2
        assert len(printed) > 30_000
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") in (
            "rgb(255, 255, 255)"
        )
        assert not seen.page.locator("#print").is_visible()


def test_hostile_names_are_shown_as_they_are(
    started: Any, folder: Path, described: tuple[Path, dict[str, Any]]
) -> None:
    data = copy.deepcopy(described[1])
    data["answer"]["run"] = HOSTILE
    data["answer"]["summary"] = [HOSTILE]
    for said in data["words"]["candidates"].values():
        said["machines"] = said["where"] = HOSTILE
    path = _written(folder, "hostile", data)
    with opened(started, path) as seen:
        assert seen.page.evaluate("window.hacked") is None
        assert seen.page.locator("main img").count() == 0
        assert seen.page.locator("h1").inner_text() == HOSTILE
        assert seen.page.title().startswith(HOSTILE)
        assert seen.requests == [f"file://{path}"]


def test_where_nothing_is_kept_it_says_so(started: Any, folder: Path) -> None:
    data = data_of(IMPOSSIBLE)
    with opened(started, _written(folder, "impossible", data)) as seen:
        assert seen.page.locator("h1").inner_text() == "Nothing satisfies the constraints."
        assert seen.page.locator("#front-title").inner_text() == "The nearest misses"
        listed = seen.page.locator("#front-table tr[data-key]").count()
        assert listed == len(data["answer"]["nearest"])
        assert "No run was recorded" in seen.page.locator("#run").text_content()
        assert seen.errors == []


def test_nothing_at_all_is_still_a_page(
    started: Any, folder: Path, described: tuple[Path, dict[str, Any]]
) -> None:
    data = copy.deepcopy(described[1])
    data["answer"] |= {"front": [], "nearest": [], "here": None, "picks": {}, "summary": [],
                       "changes": []}  # fmt: skip
    data["words"] |= {"candidates": {}, "changes": []}
    with opened(started, _written(folder, "nothing", data)) as seen:
        assert "No candidate is left" in seen.page.locator("#choice").inner_text()
        assert not seen.page.locator("#front").is_visible()
        assert seen.errors == []


def test_another_answer_can_be_drawn_in_its_place(
    started: Any, recorded: tuple[Path, dict[str, Any]], described: tuple[Path, dict[str, Any]]
) -> None:
    """As ``advisor ui`` does with every new answer."""
    with opened(started, described[0]) as seen:
        seen.page.evaluate("(data) => advisorReport.draw(data)", recorded[1])
        wait_until_drawn(seen.page)
        assert _texts(seen.page, "#choice .overline") == [recorded[1]["answer"]["run"]]
        seen.page.locator("[data-fold=run] > summary").click()
        seen.page.locator("#steps-plot .marks path.line").first.wait_for()
        assert seen.page.locator("#schedule-plot").count() == 0
        assert seen.errors == []


def test_a_gpu_and_another_rank_are_drawn_where_they_were_recorded(
    started: Any, folder: Path, recorded: tuple[Path, dict[str, Any]]
) -> None:
    data = copy.deepcopy(recorded[1])
    seen_for = data["run"]["readings"]
    count = len(seen_for["t_s"])
    seen_for |= {"gpu_fraction": [0.5] * count, "gpu_memory_bytes": [2.0**30] * count,
                 "gpu_power_w": [250.0] * count}  # fmt: skip
    data["run"]["ranks"] = [{**data["run"]["ranks"][0], "rank": rank} for rank in range(2)]
    for path, are_there in ((recorded[0], False), (_written(folder, "gpu", data), True)):
        with opened(started, path) as seen:
            seen.page.locator("[data-fold=run] > summary").click()
            seen.page.locator("#steps-plot .marks path.line").first.wait_for()
            for name in ("gpu-plot", "gpu-memory-plot", "gpu-power-plot"):
                assert (seen.page.locator(f"#{name} .marks path.line").count() > 0) is are_there
            assert ("No GPU was read" in seen.page.locator("#run").inner_text()) is not are_there
            ranks = seen.page.locator("#steps-plot .legend li", has_text="rank")
            assert ranks.count() == (2 if are_there else 0)
            assert seen.errors == []


def test_the_own_cluster_is_shown_beside(
    started: Any, folder: Path, described: tuple[Path, dict[str, Any]]
) -> None:
    data = copy.deepcopy(described[1])
    rent = {"rank": 1, "saves": "2.00 h earlier", "verdict": "rent: earlier at no extra cost"}
    data["words"]["own_cluster"] = {"line": "your cluster: 2 x 4 V100", "ways": [
        {"devices": "4 devices", "computing": ["5.00 h", "4.00-6.00"],
         "waits": "1.00 h (0.50-2.00)", "done": "6.00 h (4.50-8.00)", "rents": [rent]},
    ]}  # fmt: skip
    with opened(started, _written(folder, "cluster", data)) as seen:
        text = seen.page.locator("#cluster").inner_text()
        for said in ("your cluster: 2 x 4 V100", "5.00 h", "1.00 h (0.50-2.00)", rent["verdict"]):
            assert said in text
        assert seen.errors == []


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_three_screens_hold_what_was_not_opened(
    started: Any, recorded: tuple[Path, Any], described: tuple[Path, Any], width: int, height: int
) -> None:
    for path, _ in (recorded, described):
        with opened(started, path, width=width) as seen:
            assert seen.page.evaluate("document.documentElement.scrollHeight") <= 3 * height
            seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
            closed = seen.page.locator("main .fold:not([open])")
            assert closed.count() == 0  # paper has all of it
            seen.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
            assert closed.count() > 0


def test_what_was_opened_stays_open_while_others_are_chosen(
    started: Any, described: tuple[Path, Any]
) -> None:
    with opened(started, described[0]) as seen:
        seen.page.locator("[data-fold=facts] > summary").click()
        seen.page.locator('#front-table tr[data-key="1"] td').nth(1).click()
        assert seen.page.locator("[data-fold=facts]").get_attribute("open") is not None
        assert seen.page.locator("[data-fold=reasons]").get_attribute("open") is None
