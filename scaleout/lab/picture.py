"""A picture that a lab writes: the book's look, the same bytes for the same figures, whole or not at all."""

import sys
from contextlib import contextmanager

from scaleout.records.files import written_whole


@contextmanager
def picture(path, rows=1, columns=1, **more):
    """(figure, axes) to draw on, of matplotlib's `subplots`; at the end the figure is written to `path`, unless that
    is None."""
    import matplotlib

    if "matplotlib.pyplot" not in sys.modules:      # a notebook keeps the backend that it has
        matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.style.context("scaleout.draw.style"):
        figure, axes = pyplot.subplots(rows, columns, **more)
        yield figure, axes
        if path is not None:
            with written_whole(path) as temporary:
                figure.savefig(temporary, metadata={"Date": None} if str(path).endswith(".svg") else None)
        pyplot.close(figure)
