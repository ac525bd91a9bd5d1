"""The one palette, of pages, reports, pictures, terminals and the documentation's site.

Every colour has a value for a light scheme and one for a dark one, each with a contrast of 4.5 on
its paper (WCAG 2.2, 1.4.3), so that it may be text too. A pick has one colour everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Of a page: what is drawn on, between and over, in the light scheme and in the dark one.
SURFACES: Final[Mapping[str, tuple[str, str]]] = {
    "paper": ("#ffffff", "#14171b"), "surface": ("#f6f7f9", "#1d2127"),
    "line": ("#dfe3e8", "#343a42"), "text": ("#1b1f24", "#e8ebef"),
    "quiet": ("#59636e", "#a3adb8"), "accent": ("#0b5cad", "#7db8f5"),
    "accent-soft": ("#e6f0fa", "#1c3147"), "cost": ("#b34700", "#f2a469"),
    "mark": ("#fff6d6", "#3a3216"),
}  # fmt: skip
# Of curves, in this order where they mean nothing else: about Okabe and Ito's, darker on white;
# then the nearest of a terminal's 256 colours that is legible on black and on white.
HUES: Final[Mapping[str, tuple[str, str, int]]] = {
    "blue": ("#0068a8", "#6cb6f5", 33), "orange": ("#b84e00", "#f2995b", 166),
    "green": ("#007a58", "#4cc79c", 35), "pink": ("#a8457f", "#e594c3", 169),
    "amber": ("#8a6100", "#e3b341", 178), "cyan": ("#00727f", "#56c8d8", 74),
}  # fmt: skip
# What is picked (``Recommendation.picks``, and this machine), the weightiest first.
ROLES: Final[Mapping[str, str]] = {
    "best_value": "blue", "fastest": "orange", "cheapest": "green", "within_deadline": "pink",
    "dated": "cyan", "here": "amber",
}  # fmt: skip


def hue_of(role: str, place: int) -> str:
    """Return the hue of a role; of a curve without one, that of its place among the curves."""
    return ROLES.get(role) or list(HUES)[place % len(HUES)]


def variables(scheme: int) -> str:
    """Return the colours as CSS declarations; ``scheme``: 0 light, 1 dark."""
    colours = {**SURFACES, **HUES}
    said = [f"--{name}: {values[scheme]};" for name, values in colours.items()]
    said += [f"--{role.replace('_', '-')}: var(--{hue});" for role, hue in ROLES.items()]
    return f"color-scheme: {('light', 'dark')[scheme]}; {' '.join(said)}"


def stylesheet() -> str:
    """Return the colours for a page: the system's scheme, unless the reader chose (data-theme).

    Paper is light.
    """
    light, dark = variables(0), variables(1)
    return (
        f":root {{ {light} }}\n"
        f'@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}\n'
        "@media screen and (prefers-color-scheme: dark) "
        f'{{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
    )
