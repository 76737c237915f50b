"""What labs print: tables, numbers with their units, one line of progress. Standard library only."""

import os
import sys
import time


def table(header, rows):
    """Columns of text as one string: the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in [header, *rows]]
    wide = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in wide), *lines[1:]])


def ratio(predicted, measured):
    """predicted / measured as text with three decimals, "-" where one of them is zero or missing."""
    return f"{predicted / measured:.3f}" if predicted and measured else "-"


def ms(seconds):
    """Seconds as text in milliseconds; "-" for None."""
    return "-" if seconds is None else f"{seconds * 1e3:,.1f}"


def megabytes(count):
    """Bytes as text in MB (10^6), or GB (10^9) from 10 GB on; "-" for None."""
    if count is None:
        return "-"
    return f"{count / 1e9:,.2f} GB" if abs(count) >= 1e10 else f"{count / 1e6:,.2f} MB"


def count(value):
    """A number of things as text, without decimals where it is whole; "-" for None."""
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def compared(predicted, measured):
    """Two numbers of bytes as cells of a table, and their `ratio`."""
    return megabytes(predicted), megabytes(measured), ratio(predicted, measured)


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
