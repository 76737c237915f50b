"""One look for every plotted measurement in the book (matplotlib)."""

from __future__ import annotations

from importlib.resources import files

STYLE = files("scaleout") / "style.mplstyle"


def style() -> None:
    """Use the book's style, and store figures as SVG that is the same bytes on every run.

    Fixed bytes let nbval compare figures: the style file fixes the hash salt of element ids, and the date is left
    out. Safe to call twice; does nothing to figures outside a notebook beyond the style.
    """
    import matplotlib.pyplot as plt
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    plt.style.use(str(STYLE))
    set_matplotlib_formats("svg", metadata={"Date": None})
