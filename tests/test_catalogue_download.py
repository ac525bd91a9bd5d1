"""Downloads end in the file or in one error, in bounded time, whatever the server does."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from catalogue_server import (
    Site,
    bomb,
    content,
    dribbling,
    redirect,
    serving,
    silent,
    status,
    truncated,
    with_etag,
)

from advisor.catalogue.upkeep.download import DownloadLimits, HttpSession, Progress, RawStore
from advisor.errors import CatalogueError

BODY = json.dumps({"Items": list(range(2_000))}).encode()
MIB = 1 << 20


class FakeClock:
    """A clock that passes only while someone sleeps, or a step a look."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.time, self.step_s = 0.0, step_s
        self.slept: list[float] = []

    def now(self) -> float:
        self.time += self.step_s
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as one:
        yield one


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def session(tmp_path: Path, clock: FakeClock) -> HttpSession:
    return HttpSession(
        source="azure",
        store=RawStore(tmp_path / "raw"),
        limits=DownloadLimits(silence_s=2.0),
        now=clock.now,
        sleep=clock.sleep,
    )


def test_a_file_is_kept_with_address_day_and_checksum(session: HttpSession, site: Site) -> None:
    site.put("/a.json", content(BODY))
    file = session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert file.path.read_bytes() == BODY
    assert file.sha256 == hashlib.sha256(BODY).hexdigest()
    assert datetime.fromisoformat(file.retrieved_at).tzinfo is not None
    index = json.loads((file.path.parent / "index.json").read_text())
    assert index["a.json"]["url"] == f"{site.base}/a.json"
    assert index["a.json"]["sha256"] == file.sha256


def test_a_file_that_has_not_changed_is_not_sent_again(session: HttpSession, site: Site) -> None:
    site.put("/a.json", with_etag(BODY, '"v1"'))
    url = f"{site.base}/a.json"
    first = session.get(url, name="a.json", max_bytes=MIB)
    again = session.get(url, name="a.json", max_bytes=MIB)
    assert site.seen[1][1]["If-None-Match"] == '"v1"'
    assert again.sha256 == first.sha256
    assert again.path.read_bytes() == BODY


def test_a_copy_that_was_harmed_is_fetched_anew(session: HttpSession, site: Site) -> None:
    site.put("/a.json", with_etag(BODY, '"v1"'))
    url = f"{site.base}/a.json"
    session.get(url, name="a.json", max_bytes=MIB).path.write_bytes(b"harmed")
    again = session.get(url, name="a.json", max_bytes=MIB)
    assert "If-None-Match" not in site.seen[1][1]
    assert again.path.read_bytes() == BODY


@pytest.mark.parametrize("code", [429, 500, 502, 503])
def test_a_refusal_is_tried_again_after_a_growing_wait(
    session: HttpSession, site: Site, clock: FakeClock, code: int
) -> None:
    site.put("/a.json", status(code), status(code), content(BODY))
    session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert len(clock.slept) == 2
    assert 0.5 <= clock.slept[0] <= 1.0 <= clock.slept[1] <= 2.0


def test_the_wait_that_a_server_asks_for_is_kept(
    session: HttpSession, site: Site, clock: FakeClock
) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90))
    site.put(
        "/a.json",
        status(429, {"Retry-After": "7"}),
        status(503, {"Retry-After": later}),
        content(BODY),
    )
    session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert clock.slept[0] == 7.0
    assert 80.0 <= clock.slept[1] <= 90.0


def test_a_wait_beyond_the_limit_is_not_waited_for(
    session: HttpSession, site: Site, clock: FakeClock
) -> None:
    site.put("/a.json", status(429, {"Retry-After": "86400"}))
    with pytest.raises(CatalogueError, match=r"answers 429 .*\(1 tries\)"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert clock.slept == []


def test_a_server_that_never_recovers_is_one_error(session: HttpSession, site: Site) -> None:
    site.put("/a.json", status(500))
    with pytest.raises(CatalogueError, match=r"answers 500 .*\(4 tries\)") as raised:
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert "--from" in raised.value.hint
    assert len(site.seen) == 4


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_final_refusal_is_not_tried_again(session: HttpSession, site: Site, code: int) -> None:
    site.put("/a.json", status(code))
    with pytest.raises(CatalogueError, match=f"answers {code}"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert len(site.seen) == 1


def test_an_answer_cut_short_is_noticed_and_tried_again(session: HttpSession, site: Site) -> None:
    site.put("/a.json", truncated(BODY), content(BODY))
    file = session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert file.path.read_bytes() == BODY
    site.put("/b.json", truncated(BODY))
    with pytest.raises(CatalogueError, match="was cut short"):
        session.get(f"{site.base}/b.json", name="b.json", max_bytes=MIB)


def test_compression_cut_short_is_noticed(session: HttpSession, site: Site) -> None:
    half = gzip.compress(BODY)[:-20]
    site.put("/a.json", content(half, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(CatalogueError, match="cut short inside its compression"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)


def test_compressed_answers_are_unpacked(session: HttpSession, site: Site) -> None:
    packed = gzip.compress(BODY)
    site.put("/a.json", content(packed, headers={"Content-Encoding": "gzip"}))
    file = session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert file.path.read_bytes() == BODY
    assert site.seen[0][1]["Accept-Encoding"] == "gzip"


def test_a_failed_download_leaves_the_copy_from_before(session: HttpSession, site: Site) -> None:
    url = f"{site.base}/a.json"
    site.put("/a.json", content(BODY))
    before = session.get(url, name="a.json", max_bytes=MIB)
    site.put("/a.json", truncated(b"[" + BODY + b"]"))
    with pytest.raises(CatalogueError):
        session.get(url, name="a.json", max_bytes=MIB)
    assert before.path.read_bytes() == BODY
    assert not list(before.path.parent.glob("*.partial"))


def test_a_web_page_is_not_taken_for_data(session: HttpSession, site: Site) -> None:
    site.put("/a.json", content(b"<html>sign in</html>", "text/html; charset=utf-8"))
    with pytest.raises(CatalogueError, match="a web page, not with data"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)


def test_a_redirect_is_followed_and_a_circle_is_left(session: HttpSession, site: Site) -> None:
    site.put("/old.json", redirect("/a.json"))
    site.put("/a.json", content(BODY))
    file = session.get(f"{site.base}/old.json", name="a.json", max_bytes=MIB)
    assert file.path.read_bytes() == BODY
    site.put("/x", redirect("/y"))
    site.put("/y", redirect("/x"))
    with pytest.raises(CatalogueError, match="redirects in a circle"):
        session.get(f"{site.base}/x", name="x", max_bytes=MIB)
    assert len(site.seen) < 20


def test_a_redirect_to_a_file_of_this_machine_is_refused(session: HttpSession, site: Site) -> None:
    site.put("/a.json", redirect("file:///etc/passwd"))
    with pytest.raises(CatalogueError):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)


def test_a_gzip_bomb_is_left_unexploded(session: HttpSession, site: Site) -> None:
    site.put("/a.json", bomb(200 * MIB))
    with pytest.raises(CatalogueError, match="unpacks to more than the 1,048,576 bytes"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)


def test_a_file_that_says_it_is_too_large_is_not_read(session: HttpSession, site: Site) -> None:
    site.put("/a.json", content(bytes(2 * MIB)))
    with pytest.raises(CatalogueError, match="has 2,097,152 bytes, more than"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)


def test_silence_ends_with_the_time_limit(tmp_path: Path, site: Site, clock: FakeClock) -> None:
    limits = DownloadLimits(tries=2, silence_s=0.2)
    session = HttpSession(
        source="s", store=RawStore(tmp_path), limits=limits, now=clock.now, sleep=clock.sleep
    )
    site.put("/a.json", silent(1.0))
    with pytest.raises(CatalogueError, match=r"\(2 tries\)"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)


def test_a_server_that_dribbles_is_left_when_the_time_is_up(tmp_path: Path, site: Site) -> None:
    # Each look at the clock costs a second, so that the limit is reached after a few blocks.
    session = HttpSession(
        source="s",
        store=RawStore(tmp_path),
        limits=DownloadLimits(file_s=5.0, silence_s=2.0),
        now=FakeClock(step_s=1.0).now,
    )
    site.put("/a.json", dribbling(BODY, pause_s=0.01))
    with pytest.raises(CatalogueError, match="took longer than 5 s"):
        session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)


def test_nobody_listening_is_one_error(session: HttpSession) -> None:
    session = replace(session, limits=DownloadLimits(tries=2))
    with pytest.raises(CatalogueError, match="cannot be reached"):
        session.get("http://127.0.0.1:9/a.json", name="a.json", max_bytes=MIB)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a"])
def test_only_http_is_spoken(session: HttpSession, url: str) -> None:
    with pytest.raises(CatalogueError, match="has the scheme"):
        session.get(url, name="a.json", max_bytes=MIB)


@pytest.mark.parametrize("mirror", ["", "/not-here", "ftp://nowhere"])
def test_what_a_mirror_lacks_is_named_where_it_was_asked_for(
    session: HttpSession, site: Site, mirror: str
) -> None:
    url = f"{site.base}/absent.csv" if not mirror else "https://prices.example.com/absent.csv"
    base = f"{site.base}{mirror}" if mirror.startswith("/") else mirror
    with pytest.raises(CatalogueError) as refused:
        replace(session, mirror=base).get(url, name="absent.csv", max_bytes=1000)
    asked = f"{base}/prices.example.com/absent.csv" if mirror else url
    assert str(refused.value).startswith(f"{asked} ")
    assert ("leave --mirror" in refused.value.hint) == bool(mirror)


def test_a_mirror_takes_the_place_of_every_host(session: HttpSession, site: Site) -> None:
    session = replace(session, mirror=f"{site.base}/mirror")
    site.put("/mirror/prices.example.com/a.json?x=1", content(BODY))
    url = "https://prices.example.com/a.json?x=1"
    file = session.get(url, name="a.json", max_bytes=MIB)
    assert file.path.read_bytes() == BODY
    assert file.url == url


def test_progress_is_told(session: HttpSession, site: Site) -> None:
    told: list[Progress] = []
    session = replace(session, on_progress=told.append)
    site.put("/a.json", content(BODY))
    session.get(f"{site.base}/a.json", name="a.json", max_bytes=MIB)
    assert told[-1].done_bytes == told[-1].total_bytes == len(BODY)


@pytest.mark.parametrize("name", ["../a.json", "a/b", "", ".index", "a\\b"])
def test_a_name_cannot_lead_out_of_the_store(session: HttpSession, site: Site, name: str) -> None:
    site.put("/a.json", content(BODY))
    with pytest.raises(CatalogueError, match="not a name for a downloaded file"):
        session.get(f"{site.base}/a.json", name=name, max_bytes=MIB)
