"""The web application in a real browser: what is moved, typed, pinned, copied and exported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import LONGEST_MS, Seen, browser, opened
from collecting import ROOT

from advisor import api
from advisor.ask import Question
from advisor.estimate.predictor import Predictor

pytestmark = pytest.mark.browser

# Half a second of computing: one provider of few machines.
ASKED: dict[str, Any] = {
    "layers": 4, "hidden": 256, "heads": 4, "tokens": "20B", "cloud": "lambda",
}  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running ``advisor ui``; it ends quietly with Ctrl-C."""
    flags = [word for name, value in ASKED.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "advisor.cli", "ui", "--no-open", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip()
        finally:
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        assert running.returncode == 0, said
        assert said == ""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def seen(chromium: Any, address: str) -> Iterator[Seen]:
    """The page as it is opened; in the end nothing failed, and nobody else was asked."""
    with opened(chromium, address) as one:
        answered(one.page)
        yield one
        assert one.errors == []
        assert {urlsplit(request).netloc for request in one.requests if request[:4] == "http"} == {
            urlsplit(address).netloc
        }


def answered(page: Any) -> dict[str, Any]:
    """Wait for the answer to what the controls say; return its record."""
    page.wait_for_selector("html[data-settled=true]", state="attached", timeout=LONGEST_MS)
    record: dict[str, Any] = page.evaluate("window.advisorReport.data.answer")
    return record


def recommended(predictor: Predictor, **said: Any) -> dict[str, Any]:
    """What ``recommend --json`` says, without where each number is from."""
    found = api.recommend(Question.read({**ASKED, **said}), predictor=predictor).to_record()
    return without_facts(json.loads(json.dumps(found)))


def without_facts(record: dict[str, Any]) -> dict[str, Any]:
    rows = {
        name: [{**one, "sources": None} for one in record[name]] for name in ("front", "nearest")
    }
    return {**record, **rows}


def ask(page: Any, name: str, text: str) -> dict[str, Any]:
    page.fill(f"#ask-{name}", text)
    return answered(page)


def test_a_slider_changes_the_picks_as_recommend_does(seen: Seen, predictor: Predictor) -> None:
    page = seen.page
    before = answered(page)
    assert without_facts(before) == recommended(predictor)
    cost = before["front"][before["picks"]["fastest"] - 1]["cost_usd"]["value"]
    page.fill("[data-slider=budget]", "30")
    after = answered(page)
    budget = page.input_value("#ask-budget")
    assert 0 < float(budget) < cost
    assert without_facts(after) == recommended(predictor, budget=budget)
    assert after["picks"] != before["picks"] or after["front"] != before["front"]
    # What is read is what was answered.
    words = page.evaluate("window.advisorReport.data.words.candidates")
    shown = page.inner_text("#choice")
    assert all(words[str(pick)]["time"][0] in shown for pick in after["picks"].values())


def test_arrow_keys_move_a_slider_and_the_last_step_leaves_it_open(seen: Seen) -> None:
    page = seen.page
    slider = page.locator("[data-slider=deadline]")
    slider.press("ArrowLeft")
    assert answered(page)
    assert page.input_value("#ask-deadline").endswith("h")
    slider.press("End")
    answered(page)
    assert page.input_value("#ask-deadline") == ""
    assert slider.get_attribute("aria-valuetext") == "any"


def test_the_newest_of_many_questions_is_the_one_that_is_shown(
    seen: Seen, predictor: Predictor
) -> None:
    page = seen.page
    for nodes in range(1, 7):
        page.fill("#ask-max_nodes", str(nodes))
        page.dispatch_event("#question", "submit")
    assert without_facts(answered(page)) == recommended(predictor, max_nodes=6)


def test_a_mistake_is_told_at_its_control_and_the_answer_stays(seen: Seen) -> None:
    page = seen.page
    before = answered(page)
    assert ask(page, "budget", "plenty") == before
    field = page.locator("#ask-budget")
    assert field.get_attribute("aria-invalid") == "true"
    assert "cannot read 'plenty'" in page.inner_text("#ask-budget-wrong")
    assert "question before" in page.inner_text("#said")
    ask(page, "budget", "")
    assert field.get_attribute("aria-invalid") is None
    assert page.inner_text("#ask-budget-wrong") == ""
    # The refusal itself is no failure of the page.
    seen.errors[:] = [one for one in seen.errors if "400 (Bad Request)" not in one]


def test_nothing_satisfies_the_constraints(seen: Seen) -> None:
    page = seen.page
    page.fill("#ask-deadline", "1m")
    record = ask(page, "budget", "0.01")
    assert not record["front"]
    assert "Nothing satisfies the constraints" in page.inner_text("#said")


def test_candidates_stand_side_by_side(seen: Seen) -> None:
    page = seen.page
    answered(page)
    words = page.evaluate("window.advisorReport.data.words.candidates")
    page.click("[data-fold=compare] > summary")
    for box in page.locator("#compare .choices input").all():
        box.set_checked(box.get_attribute("value") in ("now:1", "now:2"))
    assert page.locator(".compared thead th").count() == 2
    for key in ("1", "2"):
        cell = page.locator(f"[data-row='Whole job'][data-of='now:{key}']").inner_text()
        assert cell.startswith(words[key]["time"][0])
        cell = page.locator(f"[data-row=Cost][data-of='now:{key}']").inner_text()
        assert cell.startswith(words[key]["cost"][0])
    front = page.evaluate("window.advisorReport.data.answer.front")
    ratio = front[1]["cost_usd"]["value"] / front[0]["cost_usd"]["value"]
    assert f"{float(f'{ratio:.3g}')}" in cell


def test_a_pinned_answer_stands_beside_the_present_one(seen: Seen) -> None:
    page = seen.page
    before = answered(page)
    page.click("#pin")
    after = ask(page, "gpus", "A100")
    assert before["front"] != after["front"]
    heads = page.locator(".compared thead th").all_inner_texts()
    assert heads[0].startswith("pinned #")
    assert heads[1].startswith("shown #")
    assert page.inner_text(".differences li") == "GPUs: pinned any, shown A100"
    # Both come back where the page is loaded again.
    page.reload()
    assert answered(page)["front"] == after["front"]
    page.wait_for_selector("#pin[aria-pressed=true]")
    assert page.locator(".compared thead th").all_inner_texts() == heads
    page.click("#pin")
    assert page.locator(".differences").count() == 0


def test_the_state_is_in_the_address_and_the_token_is_not(seen: Seen, address: str) -> None:
    page = seen.page
    assert page.url == address.partition("?")[0]
    page.check("#ask-spot")
    record = ask(page, "gpus", "A100")
    assert "token" not in page.url
    page.reload()
    assert answered(page) == record
    assert page.is_checked("#ask-spot")
    assert page.input_value("#ask-gpus") == "A100"
    page.click("#reset")
    answered(page)
    assert page.url == address.partition("?")[0]
    assert page.input_value("#ask-gpus") == ""


def test_the_question_is_copied(seen: Seen) -> None:
    page = seen.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "budget", "40")
    for name, holds in (("command", "advisor recommend --layers 4"), ("toml", "budget = 40.0")):
        page.click(f"[data-copy={name}]")
        page.wait_for_selector(f"[data-copy={name}]:text-is('Copied')")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.text_content(f"#{name}")
        assert holds in copied


def test_the_chosen_candidate_is_exported(seen: Seen) -> None:
    page = seen.page
    answered(page)
    page.click("tr[data-key='2']")
    page.select_option("#target", "skypilot")
    assert page.inner_text("#export") == "Export #2"
    page.click("#export")
    page.wait_for_selector("#exported a[download]")
    instance = page.evaluate(
        "window.advisorReport.data.answer.front[1].configuration[0].instance_type"
    )
    with page.expect_download() as waiting:
        page.click("#exported a[download]")
    text = waiting.value.path().read_text()
    assert text == page.text_content("#file-0")
    assert instance in text
    assert "advisor export 2 --to skypilot" in page.inner_text("#export-command")


def test_on_a_small_screen_the_question_is_folded_and_nothing_runs_over(
    chromium: Any, address: str
) -> None:
    with opened(chromium, address, width=360, scheme="dark") as one:
        page = one.page
        answered(page)
        assert not page.is_visible("#ask-budget")
        page.click("#fold")
        assert page.is_visible("#ask-budget")
        for fold in page.locator("#question summary").all():
            fold.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert one.errors == []


def test_every_control_has_a_name_and_its_help(seen: Seen) -> None:
    page = seen.page
    nameless = page.evaluate(
        """[...document.querySelectorAll("#panel input, #panel select, #panel button")].filter(
             (one) => !(one.labels && one.labels.length) && !one.getAttribute("aria-label")
                      && !one.textContent.trim()).map((one) => one.outerHTML)"""
    )
    assert nameless == []
    page.focus("#ask-gpus")
    assert "Accelerators of a machine" in page.inner_text("#ask-gpus-help")


def test_a_wrong_token_and_a_foreign_page_get_nothing(chromium: Any, address: str) -> None:
    """A stranger's page cannot ask, nor read, even from a browser that has the cookie."""
    with opened(chromium, address) as one:
        page = one.page.context.new_page()
        stranger = chromium.new_context()
        wrong = stranger.new_page()
        wrong.goto(address.partition("?")[0] + "?token=wrong")
        assert "lacks its token" in wrong.inner_text("h1")
        stranger.close()
        place = address.partition("?")[0]
        page.route("http://other.test/**", lambda route: route.fulfill(body="<p>another page</p>"))
        page.goto("http://other.test/")
        found = page.evaluate(
            """(place) => fetch(place + "api/answer", {method: "POST", credentials: "include",
                 headers: {"Content-Type": "application/json"}, body: '{"question": {}}'})
                 .then((reply) => reply.text(), (error) => "refused")""",
            place,
        )
        assert found == "refused"


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_export_is_on_the_first_screen_and_the_rest_on_three(
    chromium: Any, address: str, width: int, height: int
) -> None:
    with opened(chromium, address, width=width) as one:
        answered(one.page)
        assert one.page.locator("#export").bounding_box()["y"] < height - 40
        assert one.page.evaluate("document.documentElement.scrollHeight") <= 3 * height
        assert one.errors == []


def test_the_answer_is_read_while_more_is_worked_out(seen: Seen) -> None:
    """What is opened and how far it was scrolled stay as they are; the answer is not dimmed."""
    page = seen.page
    answered(page)
    held: list[Any] = []

    def hold(route: Any) -> None:
        if route.request.post_data_json["whole"]:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/answer", hold)
    page.fill("#ask-max_nodes", "3")
    page.wait_for_selector("html[data-answered=true]", state="attached", timeout=LONGEST_MS)
    while not held:
        page.wait_for_timeout(20)
    assert page.get_attribute("#report", "aria-busy") == "false"
    assert "being priced" in page.inner_text("#changes")
    page.click("[data-fold=reasons] > summary")
    page.evaluate("window.scrollTo(0, 300)")
    marked = page.evaluate("document.querySelector('#front').dataset.mark = 'the same'")
    held[0].continue_()
    answered(page)
    assert "being priced" not in page.inner_text("#changes")
    assert page.locator("[data-fold=reasons]").get_attribute("open") is not None
    assert page.evaluate("window.scrollY") == 300
    assert page.get_attribute("#front", "data-mark") == marked
    page.unroute("**/api/answer")
