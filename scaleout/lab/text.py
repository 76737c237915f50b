"""What labs print: tables, numbers with their units, one line of progress. Standard library only."""

import os
import sys
import time

from scaleout.words import tables


def table(header, rows):
    """Columns of text as one string: the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    return tables.aligned(header, rows, [i > 0 for i in range(len(header))])


def ratio(predicted, measured):
    """predicted / measured as text with three decimals, "-" where one of them is zero or missing."""
    return f"{predicted / measured:.3f}" if predicted and measured else "-"


def fixed(value, unit, decimals=1):
    """A value as text in units of `unit`; "-" for None."""
    return "-" if value is None else f"{value / unit:,.{decimals}f}"


def ms(seconds):
    """Seconds as text in milliseconds; "-" for None."""
    return fixed(seconds, 1e-3)


def megabytes(count):
    """Bytes as text in MB (10^6), or GB (10^9) from 10 GB on; "-" for None."""
    if count is None:
        return "-"
    return f"{count / 1e9:,.2f} GB" if abs(count) >= 1e10 else f"{count / 1e6:,.2f} MB"


def figure(name, value, milliseconds=",.4g", other=",.6g"):
    """A number of a Record with the unit that its name says; the formats are those of what is no bytes."""
    if "bytes" in name:
        return megabytes(value)
    return f"{value * 1e3:{milliseconds}} ms" if "seconds" in name else f"{value:{other}}"


def count(value):
    """A number of things as text, without decimals where it is whole; "-" for None."""
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def compared(predicted, measured):
    """Two numbers of bytes as cells of a table, and their `ratio`: "-" where both are 0.00 MB."""
    cells = megabytes(predicted), megabytes(measured)
    return *cells, "-" if cells == ("0.00 MB", "0.00 MB") else ratio(predicted, measured)


def progress(steps, label, shown=True, stream=None):
    """Iterate over the list `steps` and keep one line of progress; silent where output is no terminal.

    A command that a notebook starts sees a terminal that cannot go back a line; Jupyter sets JPY_PARENT_PID.
    """
    stream = stream or sys.stderr
    shown = shown and stream.isatty() and "JPY_PARENT_PID" not in os.environ
    start = time.perf_counter()
    for count, step in enumerate(steps):
        if shown:
            stream.write(f"\r\033[K{label}: {count}/{len(steps)}  {time.perf_counter() - start:.0f} s")
            stream.flush()
        yield step
    if shown:
        stream.write("\r\033[K")
        stream.flush()
