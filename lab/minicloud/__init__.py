"""A cloud on one machine: real training runs under real limits, each with its label.

A machine limited to a share of a core *stands for* an instance type and is called so
(``quota-0.5core``); its price is nominal. Everything else is measured: the times, the resource
series, the failures. One partial run of each job on the anchor (one free, pinned core: the
"laptop") goes with the job's full runs on the targets, so that "partial run + job + configuration
-> time and cost" can be learned and, with whole jobs left out, judged.

Layers, each using only those before it::

    instances  what a run may use, and its nominal price      tape      steps, seen from outside
    plan       which runs, in which order
    duration   how long they take
    limits     cgroup quota, pinned cores, memory             (network is one floor up)
    counting   what one step computes                         sampling  CPU, memory, network series
    training   one process, or a master and workers           node      the forked process of a run
    summary    a run's record                                 execute   one run, watched
    card       a dataset in numbers                           collect   run after run, resumable

``python -m advisor.lab.minicloud`` collects; the record's fields are described in
``datasets/runs/README.md``.
"""

from advisor.lab.minicloud.plan import MiniInstance, MiniJob, MiniLayout, MiniRun
from advisor.records.collected import Journal

__all__ = ["Journal", "MiniInstance", "MiniJob", "MiniLayout", "MiniRun"]
