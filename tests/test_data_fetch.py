"""``advisor data fetch`` against a real server on loopback that behaves, or misbehaves."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from catalogue_server import Answer, Handler, Site, content, serving, status, truncated
from typer.testing import CliRunner

from advisor import data
from advisor.catalogue.upkeep.download import DownloadLimits
from advisor.cli.program import app
from advisor.errors import ModelError, UsageError
from advisor.lab import data as measurements
from advisor.lab.data import fetch as remotes
from advisor.lab.data.fetch import LOCK, Download, Fetch

RUN = CliRunner()
BODY = bytes(range(256)) * 300
SHA = hashlib.sha256(BODY).hexdigest()


class Still:
    """A clock that only notes how long it was told to sleep."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as found:
        yield found


def downloads(tries: int = 3) -> Download:
    return Download(limits=DownloadLimits(tries=tries, silence_s=5.0), sleep=Still().sleep)


def ranged(body: bytes, etag: str = '"1"', cut_at: int | None = None) -> Answer:
    """Answer like a server with ranges and tags; hang up after ``cut_at`` bytes."""

    def answer(handler: Handler) -> None:
        asked = handler.headers.get("Range", "")
        is_same = handler.headers.get("If-Range", etag) == etag
        at = int(asked.removeprefix("bytes=").rstrip("-")) if asked and is_same else 0
        rest = body[at:]
        handler.send_response(206 if at else 200)
        if at:
            handler.send_header("Content-Range", f"bytes {at}-{len(body) - 1}/{len(body)}")
        handler.send_header("Content-Length", str(len(rest)))
        handler.send_header("ETag", etag)
        handler.end_headers()
        handler.wfile.write(rest if cut_at is None else rest[:cut_at])
        handler.close_connection = True

    return answer


def asked_from(site: Site) -> list[str | None]:
    return [headers.get("Range") for _, headers in site.seen]


def test_a_whole_file_is_taken_once(site: Site, tmp_path: Path) -> None:
    site.put("/a", ranged(BODY))
    target = tmp_path / "in" / "a"
    assert downloads().get(f"{site.base}/a", target, SHA) == SHA
    assert target.read_bytes() == BODY
    assert [p.name for p in target.parent.iterdir()] == ["a"]
    assert downloads().get(f"{site.base}/a", target, SHA) == SHA
    assert len(site.seen) == 1


def test_a_cut_transfer_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.put("/a", ranged(BODY, cut_at=1000), ranged(BODY, cut_at=500), ranged(BODY))
    downloads().get(f"{site.base}/a", tmp_path / "a", SHA)
    assert (tmp_path / "a").read_bytes() == BODY
    assert asked_from(site) == [None, "bytes=1000-", "bytes=1500-"]


def test_a_later_call_goes_on_too(site: Site, tmp_path: Path) -> None:
    site.put("/a", ranged(BODY, cut_at=1000), ranged(BODY))
    with pytest.raises(ModelError, match="cut short: 1,000 of") as raised:
        downloads(tries=1).get(f"{site.base}/a", tmp_path / "a", SHA)
    assert "kept" in raised.value.hint
    assert not (tmp_path / "a").exists()
    downloads(tries=1).get(f"{site.base}/a", tmp_path / "a", SHA)
    assert asked_from(site)[1] == "bytes=1000-"
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_server_without_ranges_sends_all_of_it(site: Site, tmp_path: Path) -> None:
    site.put("/a", truncated(BODY), content(BODY, "application/octet-stream"))
    downloads().get(f"{site.base}/a", tmp_path / "a", SHA)
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_file_that_changed_meanwhile_is_taken_anew(site: Site, tmp_path: Path) -> None:
    changed = BODY[::-1]
    site.put("/a", ranged(BODY, '"1"', cut_at=1000), ranged(changed, '"2"'))
    downloads().get(f"{site.base}/a", tmp_path / "a", hashlib.sha256(changed).hexdigest())
    assert (tmp_path / "a").read_bytes() == changed


def test_a_file_that_became_shorter_is_taken_anew(site: Site, tmp_path: Path) -> None:
    site.put("/a", ranged(BODY, cut_at=1000), status(416), ranged(BODY[:10]))
    sha = hashlib.sha256(BODY[:10]).hexdigest()
    assert downloads().get(f"{site.base}/a", tmp_path / "a", sha) == sha


def test_another_file_is_refused_and_forgotten(site: Site, tmp_path: Path) -> None:
    site.put("/a", ranged(BODY[::-1]))
    with pytest.raises(ModelError, match=r"is not the expected file.*SHA-256"):
        downloads().get(f"{site.base}/a", tmp_path / "a", SHA)
    assert not list(tmp_path.iterdir())


def test_what_is_not_there_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="answers 404") as raised:
        downloads().get(f"{site.base}/a", tmp_path / "a", SHA)
    assert "--from" in raised.value.hint
    assert len(site.seen) == 1


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.put("/a", status(503), status(503), ranged(BODY))
    clock = Still()
    found = replace(downloads(), sleep=clock.sleep).get(f"{site.base}/a", tmp_path / "a", SHA)
    assert found == SHA
    assert clock.slept == [1.0, 2.0]


def test_a_file_without_end_is_refused(site: Site, tmp_path: Path) -> None:
    site.put("/a", content(BODY, "application/octet-stream"))
    small = replace(downloads(), max_bytes=100)
    with pytest.raises(ModelError, match="too many"):
        small.get(f"{site.base}/a", tmp_path / "a", SHA)


def test_no_network_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be reached") as raised:
        downloads().get("http://127.0.0.1:9/a", tmp_path / "a", SHA)
    assert "try again" in raised.value.hint
    with pytest.raises(ModelError, match="is not a web address"):
        downloads().get("file:///etc/passwd", tmp_path / "a", SHA)


def test_a_full_disk_leaves_no_table(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put("/a", ranged(BODY))

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("advisor.lab.data.fetch.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        downloads().get(f"{site.base}/a", tmp_path / "a", SHA)
    assert not (tmp_path / "a").exists()


# Sia's and SkyPilot's own files, made up in the layout of upstream's.
PLACEMENTS = "local_bsz,step_time,sync_time,placement\n4,0.25,0.006,1\n4,0.5,0.2,12\n"
SCALABILITY = "local_bsz,step_time,sync_time,num_nodes,num_replicas\n4,0.75,0.3,3,8\n"
TRACE = json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, 0, 0, 1]})


def serve_upstream(site: Site, name: str) -> None:
    for file in remotes.REMOTES[name].files:
        text = TRACE if file.endswith(".json") else PLACEMENTS
        text = SCALABILITY if "scalability" in file else text
        path = remotes.REMOTES[name].url("", file)
        site.put(path, ranged(text.encode()))


def fetching(site: Site, tmp_path: Path) -> Fetch:
    return Fetch(
        out=tmp_path / "out", cache=tmp_path / "cache", host=site.base, download=downloads()
    )


def test_sias_files_become_our_tables(site: Site, tmp_path: Path) -> None:
    serve_upstream(site, "sia")
    written = fetching(site, tmp_path).bring("sia")
    found = measurements.SIA.read("placements", tmp_path / "out")
    assert len(found) == written["sia/placements.csv.gz"]
    aws = measurements.POLLUX.read("placements", data.root("datasets"))
    ours, theirs = found[found["cluster"] == "aws"], found[found["cluster"] != "aws"]
    pd.testing.assert_frame_equal(ours.reset_index(drop=True), aws, check_dtype=False)
    pairs = sum(len(clusters) for clusters in remotes._SIA.values())
    assert len(theirs) == 2 * pairs
    assert theirs["step_s"].tolist()[:2] == [0.25, 0.5]
    assert theirs[["nodes", "workers", "per_node"]].to_numpy()[:2].tolist() == [
        [1, 1, 1],
        [2, 3, 2],
    ]
    scalability = measurements.SIA.read("scalability", tmp_path / "out")
    assert scalability.iloc[-1][["nodes", "workers", "per_node"]].tolist() == [3, 8, 3]
    assert not (tmp_path / "cache" / "sia" / remotes.REMOTES["sia"].upstream.commit).exists()


def test_skypilots_traces_become_intervals(site: Site, tmp_path: Path) -> None:
    from advisor.records.traces import read_spot_traces

    serve_upstream(site, "spot")
    fetching(site, tmp_path).bring("spot")
    path = measurements.SPOT.path("intervals", tmp_path / "out")
    traces = read_spot_traces(path, left_out=[])
    assert len(traces) == len(remotes.REMOTES["spot"].files)
    table = pd.read_csv(path)
    first = table[table["zone"] == "us-east-1a"]
    assert first["start_s"].tolist() == [0.0, 1200.0, 3000.0]
    assert first["duration_s"].tolist() == [1200.0, 1800.0, 600.0]
    assert first["available"].tolist() == [1, 0, 1]


def test_the_first_download_is_trusted_and_the_next_must_be_the_same(
    site: Site, tmp_path: Path
) -> None:
    serve_upstream(site, "spot")
    fetching(site, tmp_path).bring("spot")
    lock = json.loads((tmp_path / "out" / "measurements" / LOCK).read_text())
    assert len(lock["sha256"]) == len(remotes.REMOTES["spot"].files)
    before = measurements.SPOT.path("intervals", tmp_path / "out").read_bytes()
    last = remotes.REMOTES["spot"]
    site.put(last.url("", last.files[-1]), ranged(b"{}"))
    with pytest.raises(ModelError, match="is not the expected file"):
        fetching(site, tmp_path).bring("spot")
    assert measurements.SPOT.path("intervals", tmp_path / "out").read_bytes() == before


def test_a_broken_trace_is_one_error(site: Site, tmp_path: Path) -> None:
    serve_upstream(site, "spot")
    remote = remotes.REMOTES["spot"]
    site.put(remote.url("", remote.files[0]), ranged(b'{"data": [1]}'))
    with pytest.raises(ModelError, match="is not a trace of SkyPilot"):
        fetching(site, tmp_path).bring("spot")
    assert not (tmp_path / "out" / "measurements" / "spot").exists()


LAMBDA = (
    "system,gpu,n_gpus,model,precision,throughput,batch_per_gpu\nV100,V100-16GB,1,bert,fp16,50,8\n"
)


def test_a_copy_of_the_tables_is_taken_by_its_checksum(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = measurements.LAMBDA.tables["throughputs"].published
    site.put(f"/copy/{place}", ranged(LAMBDA.encode()))
    fetch = replace(fetching(site, tmp_path), source=f"{site.base}/copy/")
    with pytest.raises(ModelError, match="is not the expected file"):
        fetch.bring("lambda")
    checksum = hashlib.sha256(LAMBDA.encode()).hexdigest()
    monkeypatch.setattr("advisor.lab.data.fetch.CHECKSUMS", {place: checksum})
    assert fetch.bring("lambda") == {"lambda/throughputs.csv": 1}
    found = measurements.LAMBDA.read("throughputs", tmp_path / "out")
    assert found["units_per_s"].tolist() == [50]


def test_a_copy_in_a_folder(site: Site, tmp_path: Path) -> None:
    place = tmp_path / "copy" / measurements.LAMBDA.tables["throughputs"].published
    place.parent.mkdir(parents=True)
    place.write_text(LAMBDA)
    fetch = replace(fetching(site, tmp_path), source=str(tmp_path / "copy"))
    assert fetch.bring("lambda") == {"lambda/throughputs.csv": 1}
    with pytest.raises(ModelError, match="spot traces: not under"):
        fetch.bring("spot")
    with pytest.raises(UsageError, match="no folder"):
        replace(fetch, source=str(tmp_path / "absent")).bring("lambda")


@pytest.mark.parametrize(
    ("name", "says"),
    [("mlperf", "ships already"), ("nothing", "no data set"), ("lambda", "joined by hand")],
)
def test_what_cannot_be_fetched_is_refused(
    site: Site, tmp_path: Path, name: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        fetching(site, tmp_path).bring(name)
    assert raised.value.hint


@pytest.mark.skipif(data.shared() is None, reason="the mirror of measurements is not here")
def test_checksums_are_those_of_the_mirror() -> None:
    mirror = data.shared()
    assert mirror is not None
    for place, sha256 in remotes.CHECKSUMS.items():
        with (mirror / "data" / place).open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == sha256, place
    fetched = [measurements.BY_NAME[n] for n in measurements.BY_NAME]
    places = {p.published for one in fetched if not one.ships for p in one.places}
    assert places == set(remotes.CHECKSUMS)


@pytest.mark.skipif(data.shared() is None, reason="the mirror of measurements is not here")
def test_files_named_upstream_are_those_that_were_collected() -> None:
    """No group that was set aside is fetched: clusters and zones are the mirror's."""
    mirror = data.shared()
    assert mirror is not None
    for name in ("placements", "scalability"):
        found = measurements.SIA.read(name, mirror / "data")
        collected = set(zip(found["application"], found["cluster"], strict=True))
        assert {p for p in collected if p[1] != "aws"} == set(remotes._sia_pairs())
    table = pd.read_csv(measurements.SPOT.path("intervals", mirror / "data"))
    places = table["zone"] + "_" + table["instance"]
    zones = set(zip(table["kind"], table["requested_nodes"], table["trace"], places,
                        strict=True))  # fmt: skip
    assert set(remotes._SPOT) <= zones


def test_the_command_line(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ADVISOR_SHARED", "/nonexistent")
    serve_upstream(site, "spot")
    listed = RUN.invoke(app, ["data", "list"])
    assert listed.exit_code == 0, listed.output
    assert "spot" in listed.stdout
    states = {
        one["name"]: one["state"]
        for one in json.loads(RUN.invoke(app, ["data", "list", "--json"]).stdout)["datasets"]
    }
    assert states["mlperf"] == "shipped"
    assert states["spot"] == "not here"
    done = RUN.invoke(app, ["data", "fetch", "spot", "--host", site.base])
    assert done.exit_code == 0, done.output
    again = json.loads(RUN.invoke(app, ["data", "list", "--json"]).stdout)["datasets"]
    assert {one["name"]: one["state"] for one in again}["spot"] == "fetched"
    assert isinstance(RUN.invoke(app, ["data", "fetch"]).exception, UsageError)
