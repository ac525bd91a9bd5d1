"""Rules about types: accelerators and sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from advisor.catalogue.checks.each import finding
from advisor.catalogue.checks.findings import Checked, Context, Finding, Rule
from advisor.catalogue.nouns import Accelerator
from advisor.catalogue.rows import CatalogueRows, TypeRow
from advisor.errors import AdvisorError

_MEMORY_TOLERANCE: Final = 0.07  # decimal against binary gigabytes differ by as much
# GiB of main memory for a vCPU: from 0.23 (small shared machines) to 62 (24 TB for 448 vCPUs,
# halved by constrained-core sizes) in the bundled table; a unit error is a factor of 1,000.
_GIB_PER_VCPU: Final = (0.1, 300.0)


def resolve_accelerators(rows: CatalogueRows, context: Context) -> Checked:
    """Give accelerators their canonical names; the stated memory tells members of a family."""
    findings: list[Finding] = []
    kept: list[TypeRow] = []
    for row in rows.types:
        if not row.accelerator:
            kept.append(replace(row, accelerator_count=0.0))
            continue
        try:
            name, message = _resolved(row, context)
        except AdvisorError as error:
            findings.append(finding("unknown-accelerator", "dropped", row, str(error)))
            continue
        kept.append(replace(row, accelerator=name, accelerator_count=row.accelerator_count or 1.0))
        if message:
            findings.append(finding("accelerator-memory", "corrected", row, message))
    return _with_types(rows, kept), findings


def _resolved(row: TypeRow, context: Context) -> tuple[str, str]:
    """Return the canonical name, and what was corrected to get it."""
    name = context.canonical(row.accelerator)
    stated = row.accelerator_memory_gib
    if stated is None or _agrees(context.accelerators[name], stated):
        return name, ""
    # A number of mebibytes that is one of gibibytes, and the sum over all devices.
    for factor in (1024.0, 1.0 / max(row.accelerator_count, 1.0)):
        if _agrees(context.accelerators[name], stated * factor):
            return name, ""
    family = name.split("-")[0]
    for member in sorted(context.members(family)):
        if _agrees(context.accelerators[member], stated):
            return member, f"{row.accelerator} with {stated:.0f} GiB is {member}"
    known = context.accelerators[name].memory_gb
    return name, f"{stated:g} GiB stated for {name}, which has {known:g} GB: ignored"


def _agrees(accelerator: Accelerator, gib: float) -> bool:
    decimal = accelerator.memory_gb * 1e9
    binary = accelerator.memory_gb * 2**30
    stated = gib * 2**30
    return any(
        abs(stated / size - 1) <= _MEMORY_TOLERANCE
        for size in (decimal, binary, accelerator.memory_bytes)
    )


def check_sizes(rows: CatalogueRows, context: Context) -> Checked:
    """Drop types whose memory does not go with their vCPUs."""
    findings: list[Finding] = []
    kept: list[TypeRow] = []
    known = {row.key for row in context.before.types}
    for row in rows.types:
        is_stated = row.vcpus is not None and row.memory_gib is not None
        per_vcpu = row.memory_gib / row.vcpus if row.vcpus and row.memory_gib else 0.0
        is_sane = _GIB_PER_VCPU[0] <= per_vcpu <= _GIB_PER_VCPU[1]
        if is_stated and not is_sane and row.key not in known:
            message = f"{row.memory_gib:g} GiB for {row.vcpus:g} vCPUs: a unit error?"
            findings.append(finding("machine-size", "dropped", row, message))
        elif is_stated and not is_sane:
            # The snapshot before knows better; only the statement is dropped.
            kept.append(replace(row, vcpus=None, memory_gib=None))
        else:
            kept.append(row)
    return _with_types(rows, kept), findings


def _with_types(rows: CatalogueRows, kept: list[TypeRow]) -> CatalogueRows:
    keys = {row.key for row in kept}
    prices = (one for one in rows.prices if (one.provider, one.instance_type) in keys)
    return CatalogueRows(types=tuple(kept), prices=tuple(prices))


RULES: Final[tuple[Rule, ...]] = (resolve_accelerators, check_sizes)
