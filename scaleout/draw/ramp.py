"""A colour for each rank: from dark blue over green to yellow, ever lighter, so that it also reads without hue.

One ramp for light and dark: it stays between the two papers. The names r0 to r15 let a style sheet have another.
"""

from __future__ import annotations

RAMP = (
    "#3a4796", "#35529d", "#2d5da5", "#2a6ca8", "#267caa", "#2689a4", "#299599", "#38a18f",
    "#4cac85", "#64b77b", "#80c072", "#9cc868", "#b8cd60", "#d2d157", "#e5d054", "#f7cf52",
)  # fmt: skip
LIMIT = len(RAMP)  # ranks that can be told apart


def colour(rank: int, ranks: int) -> str:
    """The CSS value of a rank's colour, the whole ramp spread over 2 to MOST ranks."""
    index = round(rank * (LIMIT - 1) / (ranks - 1))
    return f"var(--r{index},{RAMP[index]})"
