"""The index of a checkpoint's tensors: whether the chunks that ranks wrote make up every tensor, once. Pure.

    {name: {"dtype", "size", "chunks": [[offsets, sizes, file, first byte, bytes]]}}      tensors.json

Checksums say that files are as they were written; this says that what was written can be read as tensors.
"""

from itertools import pairwise
from math import prod

from scaleout.records.files import is_count


def problem(table, files, dtypes):
    """What is wrong (str) with the first bad tensor of an index; None where all are good.

    files: {name: {"bytes"}} of the checkpoint. dtypes: those that there are, as text.
    """
    if not isinstance(table, dict):
        return "must hold one JSON object"
    spans = {}
    for name, entry in table.items():
        wrong = _unreadable(entry, dtypes)
        wrong = wrong or _placed(entry["chunks"], files) or _covered(entry["size"], entry["chunks"])
        if wrong:
            return f"{name} {wrong}"
        for _, _, file, first, length in entry["chunks"]:
            spans.setdefault(file, []).append((first, first + length, name))
    for file, ranges in spans.items():
        ranges.sort()
        for (_, end, name), (first, _, next_name) in pairwise(ranges):
            if first < end:
                return f"{next_name} shares bytes of {file} with {name}"
    return None


def other(table, sizes):
    """What (str) an index has otherwise than a model: the first tensor that is missing or of another size; None: none.

    sizes: {name: size as a list} of the model.
    """
    for name, size in sizes.items():
        if name not in table:
            return f"has no {name}"
        if table[name]["size"] != size:
            return f"has {name} of {_times(table[name]['size'])}, this job {_times(size)}"
    return None


def _unreadable(entry, dtypes):
    """What is wrong with the form of one tensor's entry."""
    if not isinstance(entry, dict) or not _counts(entry.get("size")) or not isinstance(entry.get("chunks"), list):
        return "has no sound size and chunks"
    if entry.get("dtype") not in dtypes:
        return f"has the dtype {str(entry.get('dtype'))[:30]}, which torch has not"
    rank = len(entry["size"])
    for chunk in entry["chunks"]:
        if (
            not isinstance(chunk, list)
            or len(chunk) != 5
            or not all(map(_counts, (*chunk[:2], chunk[3:])))
            or not isinstance(chunk[2], str)
            or len(chunk[0]) != rank
            or len(chunk[1]) != rank
        ):
            return "has a chunk that is none"
    return None


def _placed(chunks, files):
    """What is wrong with where chunks lie in files."""
    for _, _, file, first, length in chunks:
        if file not in files:
            return f"is in {file!r}, which is not of this checkpoint"
        if first + length > files[file]["bytes"]:
            return f"ends beyond the {files[file]['bytes']:,} bytes of {file}"
    return None


def _covered(size, chunks):
    """What is wrong with the boxes that chunks are of a tensor: all lie in it, none on another, and none is missing.

    Boxes are taken along the first dimension, which is the one that most are cut along: few are open at a time.
    """
    opened = []
    for offsets, sizes, *_ in sorted(chunks):
        if any(offset + n > total for offset, n, total in zip(offsets, sizes, size, strict=True)):
            return f"has a chunk at {offsets} of {_times(sizes)}, outside its {_times(size)}"
        opened = [box for box in opened if not size or box[0][0] + box[1][0] > offsets[0]]
        if any(_meet(box, (offsets, sizes)) for box in opened):
            return f"has two chunks for the same numbers, at {offsets}"
        opened.append((offsets, sizes))
    covered, total = sum(prod(sizes) for _, sizes, *_ in chunks), prod(size)
    return None if covered == total else f"has chunks of {covered:,} numbers, and is {_times(size)}"


def _meet(first, second):
    """Whether two boxes (offsets, sizes) have a number in common."""
    return all(
        max(a, b) < min(a + n, b + m) for a, n, b, m in zip(first[0], first[1], second[0], second[1], strict=True)
    )


def _counts(value):
    return isinstance(value, list) and all(map(is_count, value))


def _times(size):
    return " x ".join(map(str, size)) or "one number"
