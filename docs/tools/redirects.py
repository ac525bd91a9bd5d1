"""A hook of the documentation site: pages that are now a part of another lead there.

Links of other people go to addresses that no longer exist: each gets a page that the browser
leaves at once for the section that has its content.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Any, Final

# The page that there was, and where its content stands now.
MOVED: Final = {
    "catalogue": "prices.html",
    "cluster": "device_model.html#from-one-device-to-many",
    "collectors": "recording.html",
    "completion": "answer.html#from-step-time-to-bill",
    "dataset": "accuracy.html#published-measurements",
    "experiments": "systems.html#small-real-experiments",
    "export": "handing_over.html#a-file-for-another-tool",
    "gate": "server.html#the-gate-at-submission",
    "intervals": "accuracy.html#how-to-read-an-interval",
    "launching": "handing_over.html#launch-commands",
    "limits": "accuracy.html#limits",
    "measurements": "accuracy.html#published-measurements",
    "memory": "device_model.html#memory",
    "offline": "prices.html#working-offline",
    "picks": "answer.html#what-is-picked",
    "plots": "answer.html#plots",
    "question": "asking.html",
    "records": "formats.html#run-records",
    "rehearsal": "recording.html#rehearsing-a-script-that-wants-gpus",
    "report": "handing_over.html#a-page-to-show",
    "scaling": "device_model.html#from-one-device-to-many",
    "speed": "accuracy.html#how-fast-it-is",
    "ui": "asking.html#asking-in-the-browser",
    "worked_example": "quickstart.html#from-profile-to-bill",
    "planner/aggregation": "planner/sharing.html#shared-aggregation-parameter-service",
    "planner/asymmetric_pipeline": "planner/layouts.html#unequal-pipelines-zorse",
    "planner/availability": "planner/whole_job.html#nodes-of-a-shared-cluster-sas",
    "planner/colocation": "planner/sharing.html#jobs-that-share-a-device-switchflow-gavel",
    "planner/data_reuse": "planner/waiting.html#repeated-data-perfect-data-echoing",
    "planner/elastic": "planner/whole_job.html#elastic-workers-hydrozoa",
    "planner/experts": "planner/sharing.html#experts-in-a-cache-emoe",
    "planner/goodput": "planner/whole_job.html#failures-and-checkpoints",
    "planner/harvesting": "planner/sharing.html#memory-that-is-not-touched-memtrade",
    "planner/heterogeneous": "planner/layouts.html#unequal-gpus-cephalo",
    "planner/limits": "planner/sharing.html#limits-of-cpu-and-memory-escra-autopilot-vpa-krr",
    "planner/links": "planner/step.html#communication",
    "planner/memory": "planner/step.html#memory-of-training",
    "planner/queueing": "planner/whole_job.html#shared-clusters-tiresias",
    "planner/spot": "planner/whole_job.html#spot-machines",
    "planner/stragglers": "planner/waiting.html#ranks-that-wait-for-a-slow-one-sms",
    "planner/swapping": "planner/layouts.html#layer-swapping-atom",
}
_PAGE: Final = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Moved</title>\n'
    '<meta name="robots" content="noindex"><meta http-equiv="refresh" content="0; url={place}">\n'
    '<link rel="canonical" href="{place}"></head>\n'
    '<body><p>This page is now at <a href="{place}">{place}</a>.</p></body></html>\n'
)


def on_post_build(config: Any, **_others: Any) -> None:
    """Write a page at every old address; one of a page that is there again is an error."""
    site = Path(config["site_dir"])
    for old, new in MOVED.items():
        page, (target, _, anchor) = site / f"{old}.html", new.partition("#")
        there = (site / target).read_text(encoding="utf-8")
        if page.exists() or (anchor and f'id="{anchor}"' not in there):
            raise ValueError(f"docs/tools/redirects.py: {old} cannot lead to {new}")
        place = os.path.relpath(site / target, page.parent) + (f"#{anchor}" if anchor else "")
        page.write_text(_PAGE.format(place=escape(place)), encoding="utf-8")
