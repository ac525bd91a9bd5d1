"""One benchmark: protocols are rows of a question with its truth, and one harness scores answers.

A ``Protocol`` says which rows there are (``Questions``: the words a user types, with the runs that
he knows; the truth; the group; what may not have been seen), who answers for the product, and
which simpler rules of ``baselines`` stand beside it, by name. Whoever has another predictor scores
it on the same rows: ``evaluate(protocol, questions, his_answers)``, or as a file
(``write_questions``, ``read_answers``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError, UsageError
from advisor.lab.score.raw import RawColumns
from advisor.lab.score.scores import (
    FORMS,
    STATISTICS,
    THE_PRODUCT,
    USUAL_SENSES,
    Blind,
    Form,
    Group,
    Scores,
    Sense,
    score,
)
from advisor.quantities import REACH_90
from advisor.records import reads

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SEEN_FORM: Final[Form] = "chosen with these rows in sight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions of one protocol, with their truth.

    ``questions`` are in words; what they say as objects, and what baselines need, is in ``facts``.
    ``truth`` is positive, nan where it stayed undecided. ``unseen`` names, a row, the measurements
    that nobody may have seen who answers. ``groups`` are masks in the order in which they are
    shown; ``counted`` are the rows of the total where some stand in groups alone; ``raw`` is what
    models without physics are fitted to; ``notes`` say what was left out.
    """

    questions: Sequence[str]
    truth: Floats
    unseen: Sequence[str]
    groups: Mapping[str, Bools] = field(default_factory=dict)
    counted: Bools | None = None
    facts: Any = None
    raw: RawColumns | None = None
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse columns of unlike lengths."""
        if self.raw is not None and len(self.raw.x) != self.truth.size:
            raise ValueError("raw columns are one a row")
        if not len(self.questions) == len(self.unseen) == self.truth.size:
            raise ValueError("questions, unseen and truth are one a row")

    @property
    def every(self) -> Bools:
        """The rows of the total."""
        return np.ones(self.truth.size, bool) if self.counted is None else self.counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What somebody answers, row by row; nan where he has no answer.

    ``rows`` are indices where the answers are not of all rows in order (a row may be answered
    several times, as by each of its neighbours). Of a baseline ``ours`` are the answers that it is
    to be compared with where these are not the protocol's own. ``others`` are the product's
    answers to a person who knows more or less; they are scored as baselines. ``groups`` are shown
    first: what is asked besides, scored already.
    """

    value: Floats
    low: Floats | None = None
    high: Floats | None = None
    rows: NDArray[np.intp] | None = None
    ours: Floats | None = None
    others: Mapping[str, Floats | Answers] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @classmethod
    def spread(cls, value: Floats, log_sd: Floats, **more: Any) -> Answers:
        """Return answers with 90 % intervals of these deviations of their logarithms."""
        half = np.exp(REACH_90 * log_sd)
        return cls(value=value, low=value / half, high=value * half, **more)

    def take(self, rows: NDArray[np.intp]) -> Answers:
        """Return the answers to some rows, without what stands beside them."""
        low, high = (None if c is None else c[rows] for c in (self.low, self.high))
        return Answers(value=self.value[rows], low=low, high=high)

    def scores(self, truth: Floats, among: Bools | None = None) -> Scores:
        """Score what is answered (and decided) among some rows."""
        rows = np.isfinite(self.value) & np.isfinite(truth)
        rows = rows if among is None else rows & among
        if self.low is None or self.high is None:
            return score(self.value[rows], truth[rows])
        return score(self.value[rows], truth[rows], low=self.low[rows], high=self.high[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Blinded:
    """Answers with everything fitted or chosen again without the scored group; see ``Blind``."""

    answers: Answers
    changed: Sequence[str]
    still_seen: Sequence[str]
    kept: Sequence[str] = ()


# Of the rows, and of those among them that are answered.
Rule = Callable[[Questions, Bools], Floats | Answers | None]
Figures = Callable[[Questions, Answers], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One kind of question, as data."""

    name: str
    description: str
    rows: Callable[[Path], Questions]  # reads the rows of a folder of measurements
    answer: Callable[[Questions], Answers]  # the product's answers
    # how form and hyper-parameters of what is scored were chosen: with these rows in sight, by
    # nested groups, or there was nothing to choose
    form: Form = SEEN_FORM
    # what is scored: the product's own answer, or a model that no verb asks
    scores: str | Callable[[Questions], str] = THE_PRODUCT
    # what had the scored rows in sight all the same: forms, priors, hyper-parameters
    seen: Sequence[str] = ()
    # of that, what was fitted to scored rows, and ``blind`` does not fit again
    fitted_on: Sequence[str] = ()
    # what the product is told here that no flag says; empty where it is asked by flags alone
    puts_in: str = ""
    baselines: Mapping[str, Rule] = field(default_factory=dict)  # simpler rules of ``baselines``
    by_group: bool = False  # whether baselines are scored a group, too
    figures: Figures | None = None
    # figure (a pattern of ``fnmatch``; the first that fits) -> what is better of it
    senses: Mapping[str, Sense] = field(default_factory=dict)
    notes: Sequence[str] = ()
    # answers without the scored group (``blind.Refit``); also told the folder of measurements
    blind: Callable[[Questions, Path], Blinded] | None = None
    # scores answers where errors and coverage are not plain means over rows
    scorer: Callable[[Questions, Answers, Bools], Scores] | None = None

    def __post_init__(self) -> None:
        """Refuse a form that is none."""
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {FORMS}, got {self.form!r}")

    def sense(self, figure: str) -> Sense | None:
        """Return what is better of a figure, as declared here or of such figures everywhere."""
        declared = (*self.senses.items(), *USUAL_SENSES.items())
        return next((sense for name, sense in declared if fnmatchcase(figure, name)), None)

    def scored(self, rows: Questions, answers: Answers, among: Bools | None = None) -> Scores:
        """Score some of the rows."""
        among = rows.every if among is None else among
        if self.scorer is None:
            return answers.scores(rows.truth, among)
        return self.scorer(rows, answers, among)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One protocol's result: overall, per left-out group, and the baselines of its row.

    Raises ValueError if a baseline is scored on other rows than we are.
    """

    protocol: Protocol
    scores: str  # what the protocol's own ``scores`` says of these rows
    overall: Scores
    groups: Sequence[Group] = ()
    baselines: Mapping[str, Scores] = field(default_factory=dict)
    # our scores on the rows of a baseline that has no answer for all of them
    beside: Mapping[str, Scores] = field(default_factory=dict)
    # what does not fit the common metrics (e.g. top-1 regret).
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    blind: Blind | None = None

    def __post_init__(self) -> None:
        """Refuse baselines that were scored on other rows than ours."""
        for name, theirs in self.baselines.items():
            if theirs.rows != self.ours(name).rows:
                raise ValueError(
                    f"{self.protocol.name}: baseline {name!r} has {theirs.rows} rows, "
                    f"ours {self.ours(name).rows}: put our scores on its rows into beside"
                )

    def ours(self, baseline: str) -> Scores:
        return self.beside.get(baseline, self.overall)

    def losses(self) -> list[dict[str, Any]]:
        """Return every statistic in which a baseline is better than we are, on the same rows.

        Of all rows (``group`` is "ALL"), and of the groups whose baselines are known.
        """
        pairs = [("ALL", name, self.ours(name), s) for name, s in self.baselines.items()]
        pairs += [(g.group, name, g.scores, s) for g in self.groups for name, s in
                  g.baselines.items()]  # fmt: skip
        return [
            {"group": group, "baseline": name, "statistic": statistic, "ours": a, "theirs": b}
            for group, name, ours, theirs in pairs
            for statistic in STATISTICS
            if (a := getattr(ours, statistic)) > (b := getattr(theirs, statistic))
        ]

    def to_record(self) -> dict[str, Any]:
        asked = self.protocol
        record = {
            "schema_version": 1,
            "protocol": asked.name,
            "description": asked.description,
            "rows": self.overall.rows,
            "form": asked.form,
            "scores": self.scores,
            "seen": list(asked.seen),
            "overall": self.overall.record(),
            "groups": [_group_record(g) for g in self.groups],
            "baselines": {
                name: {**s.record(), "ours": self.ours(name).record()}
                for name, s in self.baselines.items()
            },
            "losses": self.losses(),
            "figures": dict(self.figures),
            "notes": list(self.notes),
            "puts_in": asked.puts_in,
        }
        return record if self.blind is None else record | {"blind": self._blind_record(self.blind)}

    def _blind_record(self, blind: Blind) -> dict[str, Any]:
        return {
            "changed": list(blind.changed),
            "still_seen": list(blind.still_seen),
            "kept": list(blind.kept),
            "overall": blind.overall.record(),
            "groups": [_group_record(g) for g in blind.groups],
            "difference": {
                name: round(getattr(blind.overall, name) - getattr(self.overall, name), 6)
                for name in STATISTICS
            },
        }


def _group_record(group: Group) -> dict[str, Any]:
    """Return a group's scores, with its baselines where it has some."""
    found = {"group": group.group, **group.scores.record()}
    simple = {name: s.record() for name, s in group.baselines.items()}
    return found | ({"baselines": simple} if simple else {})


def run(protocol: Protocol, data: Path, *, is_blind: bool = False) -> Validation:
    """Ask the product for a protocol's rows, and score what it says.

    Raises AdvisorError if measurements are not there, cannot be read, or hold nothing to ask.
    """
    rows = protocol.rows(data)
    found = evaluate(protocol, rows, protocol.answer(rows))
    if not is_blind:
        return found
    if protocol.blind is None:
        same = Blind(
            overall=found.overall, groups=found.groups, still_seen=protocol.seen,
            kept=protocol.fitted_on,
        )  # fmt: skip
        return replace(found, blind=same)
    with reads.nothing_noted():  # what is compared later are the plain figures, and their inputs
        again = protocol.blind(rows, data)
    return replace(
        found,
        blind=Blind(
            overall=protocol.scored(rows, again.answers),
            groups=_groups(protocol, rows, again.answers, {}),
            changed=again.changed,
            still_seen=again.still_seen,
            kept=again.kept,
        ),
    )


def evaluate(protocol: Protocol, rows: Questions, answers: Answers) -> Validation:
    """Score anybody's answers to a protocol's rows, with the baselines on the same rows."""
    answered = np.isfinite(answers.value) & np.isfinite(rows.truth)
    said = {name: rule(rows, answered) for name, rule in protocol.baselines.items()}
    if rows.raw is not None:
        said |= rows.raw.plain_models(rows.truth, answered)
    rules = {
        name: one if isinstance(one, Answers) else Answers(value=one)
        for name, one in {**said, **answers.others}.items()
        if one is not None
    }
    baselines, beside = {}, {}
    for name, rule in rules.items():
        if found := _beside(protocol, rows, answers, rule):
            baselines[name] = found[0]
            if found[1] is not None:
                beside[name] = found[1]
    told = protocol.scores
    return Validation(
        protocol=protocol,
        scores=told if isinstance(told, str) else told(rows),
        overall=protocol.scored(rows, answers),
        groups=[*answers.groups, *_groups(protocol, rows, answers, rules)],
        baselines=baselines,
        beside=beside,
        figures={
            **answers.figures,
            **(protocol.figures(rows, answers) if protocol.figures else {}),
        },
        notes=(*protocol.notes, *rows.notes, *answers.notes),
    )


def _beside(
    protocol: Protocol, rows: Questions, answers: Answers, rule: Answers
) -> tuple[Scores, Scores | None] | None:
    """Score a rule where both answer, and us there where that is not everywhere."""
    if protocol.scorer is not None:
        return protocol.scored(rows, rule), None
    place = slice(None) if rule.rows is None else rule.rows
    truth = rows.truth[place]
    ours = Answers(value=answers.value[place]) if rule.ours is None else Answers(value=rule.ours)
    both = np.isfinite(ours.value) & np.isfinite(rule.value) & np.isfinite(truth)
    both &= rows.every[place]
    if not both.any():
        return None
    is_same = rule.rows is None and rule.ours is None
    answered = np.isfinite(answers.value) & np.isfinite(rows.truth) & rows.every
    if is_same and np.array_equal(both, answered):
        return rule.scores(truth, both), None
    return rule.scores(truth, both), ours.scores(truth, both)


def _groups(
    protocol: Protocol, rows: Questions, answers: Answers, rules: Mapping[str, Answers]
) -> list[Group]:
    """Score every group that holds an answer."""
    found = []
    answered = np.isfinite(answers.value) & np.isfinite(rows.truth)
    for name, mask in rows.groups.items():
        if (mask & answered).any():
            simple = {
                rule: protocol.scored(rows, theirs, mask)
                for rule, theirs in (rules.items() if protocol.by_group else ())
            }
            scored = protocol.scored(rows, answers, mask)
            found.append(Group(group=name, scores=scored, baselines=simple))
    return found


def by(labels: Iterable[Any], *, prefix: str = "", is_sorted: bool = True) -> dict[str, Bools]:
    """Return a mask for every label, sorted or as they first come.

    >>> {name: mask.tolist() for name, mask in by(["b", "a", "b"]).items()}
    {'a': [False, True, False], 'b': [True, False, True]}
    """
    column = np.array([str(label) for label in labels])
    names = sorted(set(column.tolist())) if is_sorted else list(dict.fromkeys(column.tolist()))
    return {f"{prefix}{name}": column == name for name in names}


def write_questions(rows: Questions, path: Path) -> int:
    """Write questions, truth, group and what may not have been seen as CSV; returns the rows."""
    import pandas as pd

    groups = [
        "; ".join(name for name, mask in rows.groups.items() if mask[i])
        for i in range(rows.truth.size)
    ]
    pd.DataFrame(
        {"question": rows.questions, "truth": rows.truth, "group": groups, "unseen": rows.unseen}
    ).to_csv(path, index_label="row")
    return int(rows.truth.size)


def read_answers(path: Path, rows: Questions) -> Answers:
    """Read another predictor's answers: CSV of row, value and perhaps low and high.

    Raises UsageError if the file cannot be read or lacks a column. Raises ModelError if an answer
    is of no row, or none is there.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path).set_index("row")
        columns = {n: frame[n].astype(float) for n in ("value", "low", "high") if n in frame}
        value = columns["value"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"cannot read answers from {path}: {error}",
            hint="columns: row, value, and perhaps low and high",
        ) from error
    if not value.index.is_unique or not value.index.isin(range(rows.truth.size)).all():
        raise ModelError(f"{path} answers rows that were not asked, or twice",
                         hint="the rows are those of --questions FILE")  # fmt: skip
    if not value.gt(0).any():
        raise ModelError(f"{path} holds no answer", hint="value is positive, in the truth's unit")
    every: dict[str, Any] = {
        n: c.reindex(range(rows.truth.size)).to_numpy(float) for n, c in columns.items()
    }
    return Answers(**every)
