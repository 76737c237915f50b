"""A reader's own run of labs/tensor.py in the view `tensor`: its exposed communication and saved activations."""

from __future__ import annotations

from scaleout.spec import checks
from scaleout.views import own

LAB = "labs/tensor.py"
WAYS = ("by hand", "parallelize_module")  # the first that the Record has
SEQUENCE = ", sequence"  # ends the name of a way with sequence parallelism
KEPT_BYTES = "bytes the blocks keep"
COMPUTES = "share of the step that computes"  # of a run over a link between hosts


def measured(record: dict) -> dict:
    """{"ranks", "device", "hosts", "waits", "waits_sequence", "kept"} of a Record: shares of a step in messages that
    nothing hides, without and with sequence parallelism (None where that did not run), and bytes kept by those that
    were predicted (None in 16 bits). ValueError, in one line, for any other file."""
    run = own.group(record, "tensor", LAB)
    seen, predicted = own.table(record, "measurement", LAB), own.table(record, "prediction", LAB)
    hosts = record.get("nodes")
    run["hosts"] = hosts if checks.is_whole(hosts) and 1 <= hosts <= run["ranks"] else 1
    if COMPUTES in seen:
        waits = 1 - min(1.0, own.amount(seen, COMPUTES, LAB))
        return run | {"waits": waits, "waits_sequence": None, "kept": None}
    way = next((way for way in WAYS if f"seconds per step, {way}" in seen), WAYS[0])
    sequence_share = _share(seen, way + SEQUENCE) if f"seconds per step, {way}{SEQUENCE}" in seen else None
    key = f"{KEPT_BYTES}, {way}"
    kept_ratio = own.amount(seen, key, LAB) / own.amount(predicted, key, LAB) if key in seen else None
    return run | {"waits": _share(seen, way), "waits_sequence": sequence_share, "kept": kept_ratio}


def _share(seen: dict, way: str) -> float:
    seconds, waits = own.exposed(seen, way, LAB)
    return waits / seconds


def point(run: dict, sequence: bool) -> tuple[float, str, str]:
    """(share of a step that waits for the wire, words, fewer words); without sequence parallelism where none ran."""
    share = run["waits_sequence"] if sequence and run["waits_sequence"] else run["waits"]
    kept_words = f", saves {run['kept']:.3f} of the predicted" if run["kept"] else ""
    start, machine = f"your run: {share:.0%} exposed", own.machine(run)
    machine = f"{run['hosts']} hosts, {machine}" if run["hosts"] > 1 else machine
    return share, f"{start}{kept_words}, {machine}", f"{start}, {machine}"
