"""A picture that a lab writes: the book's look, the same bytes for the same figures, whole or not at all."""

from contextlib import contextmanager

from scaleout.records.files import written_whole


@contextmanager
def picture(path, rows=1, columns=1, **more):
    """(figure, axes) to draw on, of matplotlib's `subplots`; at the end the figure is written to `path`."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.style.context("scaleout.draw.style"):
        figure, axes = pyplot.subplots(rows, columns, **more)
        yield figure, axes
        with written_whole(path) as temporary:
            figure.savefig(temporary, metadata={"Date": None} if str(path).endswith(".svg") else None)
        pyplot.close(figure)
