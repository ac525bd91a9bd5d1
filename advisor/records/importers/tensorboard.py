"""TensorBoard's event files, read with TensorBoard's own reader: a folder of them is a run.

A run began with its first event and took until its last: nothing says whether it was done then.
Settings are those that ``add_hparams`` wrote. Steps per second come from the steps of the scalars;
the processor's load from a scalar called ``.../cpu_percent`` (percent of all cores, whose number
is that of the machine that the user names), as Lightning's ``DeviceStatsMonitor`` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.errors import RunError
from advisor.records import Instances, ResourceSeries, RunRecord
from advisor.records.importers.rows import located
from advisor.records.importers.series import Floats, gauge, grid, rate, resource_series
from advisor.records.importers.tracked import UNKNOWN, known_machines, library, run_record

_PATTERN: Final = "*tfevents*"
_CPU: Final = "cpu_percent"
_READINGS: Final = 240  # of the series: more says nothing more of it
_HPARAMS: Final = "hparams"
_SESSION: Final = "_hparams_/session_start_info"


def read(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read every folder of event files under a folder; ``machines`` made the runs.

    Raises RunError if there is none, TensorBoard is not installed, or a run makes no sense.
    """
    files = [path] if path.is_file() else sorted(path.rglob(_PATTERN))
    folders = sorted({file.parent for file in files if file.is_file()})
    if not folders:
        raise RunError(f"no event files in {path}", hint="name the folder that TensorBoard shows")
    return [_record(folder, path, machines) for folder in folders]


def _record(folder: Path, path: Path, said: Instances | None) -> RunRecord:
    events = _events(folder)
    began_s = events.FirstEventTimestamp()
    scalars = _scalars(events)
    last_s = max((t[-1] for t, _, _ in scalars.values()), default=began_s)
    machines = known_machines(Instances(provider="", instance_type=UNKNOWN), said)
    inside = folder.relative_to(path) if path.is_dir() else Path(folder.name)
    name = str(inside) if inside.parts else folder.resolve().name
    with located(folder, 1):
        return run_record(
            source="tensorboard",
            run_id=name,
            family=Path(name).parts[0],
            settings=_settings(events),
            machines=machines,
            time_s=float(last_s - began_s),
            status="ok",
            series=_series(scalars, float(began_s), machines.vcpus),
        )


def _events(folder: Path) -> Any:
    module = library("tensorboard.backend.event_processing.event_accumulator")
    # Every scalar (0 is all), and nothing of what is large.
    sizes = {"scalars": 0, "tensors": 0, "images": 1, "audio": 1, "histograms": 1}
    events = module.EventAccumulator(str(folder), size_guidance=sizes)
    try:
        events.Reload()
        events.FirstEventTimestamp()
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {folder}: {error}", hint="copy the run again") from error
    return events


def _scalars(events: Any) -> dict[str, tuple[Floats, Floats, Floats]]:
    """Return wall time [s], step and value of every scalar; newer writers call them tensors."""
    found = {}
    make_array = library("tensorboard.util.tensor_util").make_ndarray
    for tag in events.Tags()["scalars"]:
        points = [(one.wall_time, one.step, one.value) for one in events.Scalars(tag)]
        found[tag] = points
    for tag in events.Tags()["tensors"]:
        points = [
            (one.wall_time, one.step, float(values.item()))
            for one in events.Tensors(tag)
            if (values := make_array(one.tensor_proto)).size == 1 and values.dtype.kind in "fiu"
        ]
        found |= {tag: points} if points else {}
    return {tag: tuple(np.array(points, dtype=float).T) for tag, points in found.items()}


def _settings(events: Any) -> dict[str, object]:
    """Return what ``add_hparams`` wrote of the run."""
    try:
        content = events.PluginTagToContent(_HPARAMS)[_SESSION]
    except KeyError:
        return {}
    data = library("tensorboard.plugins.hparams.plugin_data_pb2").HParamsPluginData()
    data.ParseFromString(content)
    values = data.session_start_info.hparams
    return {name: getattr(one, one.WhichOneof("kind")) for name, one in values.items()}


def _series(
    scalars: dict[str, tuple[Floats, Floats, Floats]], began_s: float, vcpus: float | None
) -> ResourceSeries | None:
    longest = max(scalars.values(), key=lambda one: one[0].size, default=None)
    if longest is None or longest[0].size < 2:
        return None
    duration_s = float(longest[0][-1] - began_s)
    interval_s = max(float(np.median(np.diff(longest[0]))), duration_s / _READINGS, 0.1)
    ticks = grid(duration_s, interval_s)
    channels = {"steps_per_s": rate(longest[0] - began_s, longest[1], ticks)}
    cpu = [one for tag, one in scalars.items() if tag.rpartition("/")[2] == _CPU]
    if cpu and vcpus:
        t_s, _, percent = cpu[0]
        channels["cpu_cores"] = vcpus / 100.0 * gauge(t_s - began_s, percent, ticks)
    return resource_series(channels, interval_s)
