"""A picture that a lab writes: in the book's style, the same bytes for the same figures, complete or not at all."""

import sys
from contextlib import contextmanager

from scaleout.draw import svg
from scaleout.records.files import written_whole

STYLE = "scaleout.draw.style"


def name_colours():
    """Let matplotlib know the palette by its names, "c1" to "c8", "ink" and the others, as the style file does."""
    from matplotlib import colors

    colors.get_named_colors_mapping().update(svg.FALLBACK)


@contextmanager
def picture(path, rows=1, columns=1, **options):
    """(figure, axes) to draw on, of matplotlib's `subplots`; at the end the figure is written to `path`, unless that
    is None."""
    import matplotlib

    if "matplotlib.pyplot" not in sys.modules:  # a notebook keeps the backend that it has
        matplotlib.use("agg")
    from matplotlib import pyplot

    name_colours()
    with pyplot.style.context(STYLE):
        figure, axes = pyplot.subplots(rows, columns, **options)
        yield figure, axes
        if path is not None:
            with written_whole(path) as temporary:
                figure.savefig(temporary, metadata={"Date": None} if str(path).endswith(".svg") else None)
        pyplot.close(figure)
