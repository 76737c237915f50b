"""The gradients that the page has are those of the Record, and show what a chapter says of them."""

from itertools import pairwise

import recorded_gradients

from scaleout.lab import precision as lab_precision
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.octaves import fate, together
from scaleout.numerics.recorded import GRADIENTS, LARGEST
from scaleout.numerics.scaling import Scaler, search
from scaleout.records import results


def test_they_are_the_records():
    record = results.load(recorded_gradients.RECORD)
    assert lab_precision.moments_of(record.series) == GRADIENTS
    assert tuple(record.series[recorded_gradients.LARGEST]) == LARGEST
    assert recorded_gradients.TARGET.read_text(encoding="utf-8") == recorded_gradients.text(LARGEST, GRADIENTS)
    assert (record.model["layers"], record.recipe["precision"]) == (4, "fp32")


def test_gradients_get_smaller_as_the_model_learns():
    first, last = (together(GRADIENTS[moment]["activations"].values()) for moment in ("first step", "last step"))
    assert first.total == last.total == 4 * 128 * (4 * (5 * 128 + 512) + 256), "tokens, and outputs of linear layers"
    assert fate(last, FORMATS["fp16"]).zero > 3 * fate(first, FORMATS["fp16"]).zero
    assert fate(last, FORMATS["bf16"]).zero == 0
    for kinds in GRADIENTS.values():
        assert together(kinds["weights"].values()).total == 842_496


def test_queries_and_keys_lose_most_in_fp16_and_a_loss_scale_saves_them():
    parts = {part: fate(h, FORMATS["fp16"]).zero for part, h in GRADIENTS["last step"]["activations"].items()}
    assert max(parts, key=parts.get) == "block 4, queries and keys"
    losses = [parts[f"block {i}, queries and keys"] for i in (1, 2, 3, 4)]
    assert losses == sorted(losses)
    assert losses[0] < 0.05 < 0.4 < losses[-1] < 0.45
    h = together(GRADIENTS["last step"]["activations"].values())
    assert fate(h, FORMATS["fp16"], 16).zero < 0.001 < 0.04 < fate(h, FORMATS["fp16"]).zero
    assert fate(h, FORMATS["e4m3"], 16).zero > fate(h, FORMATS["e5m2"], 16).zero > fate(h, FORMATS["fp16"], 16).zero


def test_records_passed_their_checks_and_show_what_fp16_loses():
    kept = {path.stem: results.load(path) for path in recorded_gradients.RECORD.parent.glob("*.json")}
    assert {"smoke-cpu-1", "cpu-cpu-1"} <= set(kept)
    for r in kept.values():
        assert all(check["passed"] for check in r.checks.values())
        lost = "share of gradients that are zero, fp16 matmuls, no loss scale"
        assert r.measurement[lost] > 0.04 > r.measurement[lost.replace("no loss", "loss")]


def test_a_search_over_the_largest_gradients_is_what_the_scaler_did():
    """torch's scaler, in fp16, on a model of its own: its gradients are nearly those of fp32."""
    record = results.load(recorded_gradients.RECORD)
    course = search(LARGEST, FORMATS["fp16"], Scaler(interval=record.recipe["growth interval"]), repeats=True)
    did = record.series["loss scale, fp16 matmuls, loss scale"]
    alike = [step.scale == scale for step, scale in zip(course, did, strict=True)]
    assert sum(step.skipped for step in course) == 3 and alike.count(True) > 2 / 3 * len(alike)
    assert all(scale / 4 <= step.scale <= 4 * scale for step, scale in zip(course, did, strict=True))
    assert sum(after < before for before, after in pairwise(did)) == 3
