"""The accuracy figures: run the protocols, store what they give, check it, write the tables.

    python -m advisor.lab.score.accuracy check [--quick] [--since REF] [PROTOCOL ...]
    python -m advisor.lab.score.accuracy store --reason TEXT [--day DAY] [--blind] [PROTOCOL ...]
    python -m advisor.lab.score.accuracy figures [--check]

``check`` fails where a figure is worse than is stored (``lab.score.gate``), of protocols and of
folders of constants as they ship (``shipped/FOLDER``; ``--quick`` runs ``sampled/PROTOCOL`` of
what takes minutes), and, with ``--since``, where stored figures
became worse under the reason of the former ones.
``figures`` writes ``docs/generated/protocols.md`` and ``docs/generated/accuracy.md``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from advisor.lab import score
from advisor.lab.score import gate, stored
from advisor.lab.score.figures import between_markers, hardware_table, readme_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "generated" / "protocols.md"
HARDWARE = ROOT / "docs" / "generated" / "accuracy.md"
EVERY = (*score.PROTOCOLS, *score.SHIPPED, *score.SAMPLED)


def main(argv: list[str] | None = None) -> int:
    """Run one of the three commands; returns the exit code."""
    asked = _arguments().parse_args(argv)
    return int(asked.call(asked))


def check(asked: argparse.Namespace) -> int:
    """Run protocols and compare them with what is stored."""
    held = stored.read_held("shipped") | stored.read_held("sampled")
    main, more = stored.read_all() | held, stored.read_all(stored.fetched())
    kept = more | main
    names = asked.protocols or [n for n in kept if is_asked(kept[n], is_quick=asked.quick)]
    missing = [n for n in EVERY if n not in kept]
    failed = [f"{n}: no stored figures" for n in missing if n in names or not asked.protocols]
    rows, reproduced, cpu_s = 0, 0, 0.0
    for now in gate.measure_all([n for n in names if n in kept], processes=asked.processes):
        is_second = stored.place_of(now.protocol, now.inputs) == stored.fetched()
        column = more if is_second or now.protocol not in main else main
        if now.protocol not in column:
            failed.append(f"{now.protocol}: no stored figures with what was fetched")
            continue
        verdict = gate.judge(column[now.protocol], now, is_fetched=column is more)
        said = "worse" if verdict.failures else (verdict.remark and "not compared") or "as stored"
        cpu_s += now.cpu_s
        if now.protocol not in score.SHIPPED:
            rows += 0 if verdict.remark else verdict.rows
            reproduced += verdict.rows if column is main and said == "as stored" else 0
        print(f"{now.protocol:21}{said:14}{verdict.rows:6} rows {now.cpu_s:7.1f} s of CPU "
              f"{verdict.remark}", flush=True)  # fmt: skip
        failed += [f"{now.protocol}: {line}" for line in verdict.failures]
    if not asked.protocols and rows < gate.LEAST_ROWS:
        failed.append(f"only {rows:,} rows were compared, {gate.LEAST_ROWS:,} are needed")
    if asked.since:
        failed += unexplained_since(asked.since, kept)
    wanted = sum(
        int(main[n].record["rows"]) for n in names if n in main and n not in score.SHIPPED
    )
    share = f"{100 * reproduced / wanted:.1f} %" if wanted else "none"
    print(f"{rows:,} rows, {cpu_s:.0f} s of CPU",
          f"of what ships {reproduced:,} of {wanted:,} as stored ({share})",
          *failed, sep="\n")  # fmt: skip
    return 1 if failed else 0


def is_asked(one: stored.Stored, *, is_quick: bool) -> bool:
    """Whether a check of everything runs it: samples where the whole is left out."""
    return is_quick if one.protocol in score.SAMPLED else one.is_quick or not is_quick


def unexplained_since(ref: str, kept: Mapping[str, stored.Stored]) -> list[str]:
    """Return stored figures that became worse since a commit and have no reason of their own."""
    found = []
    for name, now in kept.items():
        place = stored.path(name, Path("datasets") / "accuracy").as_posix()
        shown = subprocess.run(
            ["git", "show", f"{ref}:{place}"], cwd=ROOT, capture_output=True, check=False
        )
        if shown.returncode == 0:  # else it was not stored then
            before = stored.parsed(json.loads(shown.stdout))
            found += [f"{name}: {line}" for line in gate.unexplained(before, now)]
    return found


def store(asked: argparse.Namespace) -> int:
    """Run protocols and store their figures."""
    day = date.fromisoformat(asked.day).isoformat()
    failed = []
    names = asked.protocols or EVERY
    for now in gate.measure_all(names, processes=asked.processes, is_blind=asked.blind):
        if now.record is None:
            failed.append(f"{now.protocol}: {now.problem}")
            continue
        figures = stored.Stored(
            protocol=now.protocol, day=day, reason=asked.reason,
            command=_command(now.protocol, asked),
            cpu_s=float(round(now.cpu_s)), inputs=now.inputs, record=now.record,
        )  # fmt: skip
        place = stored.place_of(now.protocol, now.inputs)
        print(f"{stored.write(figures, place)}: {now.cpu_s:.1f} s of CPU", flush=True)
    print(*failed, sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


def _command(name: str, asked: argparse.Namespace) -> str:
    if name not in score.PROTOCOLS:
        return f"python -m advisor.lab.score.accuracy check {name}"
    return f"advisor validate {name}{' --blind' if asked.blind else ''} --json"


def figures(asked: argparse.Namespace) -> int:
    """Write the tables, or say which of them are not what the stored figures give."""
    kept, more = stored.read_all(), stored.read_all(stored.fetched())
    table = readme_table(kept, more)
    wanted = {
        PAGE: between_markers(PAGE.read_text(encoding="utf-8"), table),
        HARDWARE: hardware_table(kept, more),
    }
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text("utf-8") != text]
    for page in stale:
        if not asked.check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(wanted[page], encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'not what is stored' if asked.check else 'written'}")
    return 1 if asked.check and stale else 0


def _arguments() -> argparse.ArgumentParser:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = asked.add_subparsers(required=True)
    for call in (check, store):
        verb = verbs.add_parser(call.__name__, help=call.__doc__)
        verb.set_defaults(call=call)
        verb.add_argument("protocols", nargs="*", choices=[*EVERY, []])
        verb.add_argument("--processes", type=int, default=2, help="at once (default: 2)")
        if call is check:
            verb.add_argument("--quick", action="store_true", help="of those of minutes some rows")
            verb.add_argument("--since", metavar="REF", help="commit to compare the reasons with")
        else:
            today = datetime.now(UTC).date().isoformat()
            verb.add_argument("--reason", required=True, help="why the figures changed")
            verb.add_argument("--day", default=today, help="(default: today)")
            verb.add_argument("--blind", action="store_true", help="store the blind scores too")
    verb = verbs.add_parser("figures", help=figures.__doc__)
    verb.set_defaults(call=figures)
    verb.add_argument("--check", action="store_true", help="only say what is stale")
    return asked


if __name__ == "__main__":
    sys.exit(main())
