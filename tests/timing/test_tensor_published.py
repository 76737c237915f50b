"""Seconds under tensor and sequence parallelism, held against published runs."""

import json
from math import ceil
from pathlib import Path
from statistics import median, quantiles

import pytest

from scaleout.collectives.tensor import block
from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape
from scaleout.timing.tensor import OVERLAPS, block_seconds, core_seconds, step_seconds
from scaleout.timing.tensor_machine import machine

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "tensor_parallel.json").read_text())


def on(tp, inside, device):
    return machine(device, cluster(1, tp, inside=inside), Layout(tp=tp))


def layer_of_22b():
    """{row: (forward, backward) in milliseconds} of one layer on 8 A100, as Megatron overlaps it."""
    said, naive = PUBLISHED["korthikanti"], {"attention": "naive", "dropout": True}
    shape = Shape(said["layers"], said["hidden"], said["heads"], said["vocab"], max_seq=said["seq"])
    machines, rows = on(8, said["inside"], DEVICES[said["device"]]), {}
    for name in said["milliseconds"]:
        one = block(shape, said["micro_batch"], said["seq"], said["tp"], sequence_parallel="sequence" in name)
        forward, backward = (p.seconds for p in block_seconds(one, machines, overlap="backward", **naive))
        again = sum(core_seconds(one, machines, **naive)[0]) if "selective" in name else forward * (name == "full")
        rows[name] = (1e3 * forward, 1e3 * (backward + again))
    return rows


def a100_of_2021():
    """(predicted, published) TFLOP/s a GPU: naive attention, each block recomputed, nothing overlapped."""
    said, rows = PUBLISHED["megatron_2021"], []
    for row in said["rows"]:
        layout = Layout(dp=row["gpus"] // row["tp"], tp=row["tp"])
        shape = Shape(row["layers"], row["hidden"], row["heads"], said["vocab"], max_seq=said["seq"])
        on = machine(DEVICES[said["device"]], cluster(row["gpus"] // 8, 8, said["inside"], said["across"]), layout)
        time = step_seconds(
            shape, said["micro_batch"], said["seq"], layout, on,
            Recipe("bf16-master", attention="naive", dropout=0.1, checkpointing="full"),
            accumulation=row["batch"] // layout.dp // said["micro_batch"], hide_data=False,
        )  # fmt: skip
        rows.append((time.hfu * 312, row["tflops"]))
    return rows


def nemotron(overlap):
    """(predicted, published) seconds of a step on 16 to 2,048 H100."""
    said, rows = PUBLISHED["nemotron_15b"], []
    for gpus, seconds in zip(said["gpus"], said["seconds"], strict=True):
        layout = Layout(dp=gpus // 4, tp=4, zero=1, sequence_parallel=True)
        on = machine(DEVICES[said["device"]], cluster(ceil(gpus / 8), 8), layout)
        time = step_seconds(Shape(**said["shape"]), said["micro_batch"], said["seq"], layout, on, overlap=overlap,
                            accumulation=said["accumulation"])  # fmt: skip
        rows.append((time.seconds, seconds))
    return rows


def errors(rows):
    return [found / said - 1 for found, said in rows]


def test_one_model_on_rows_that_did_not_make_it():
    """21 rows of three papers and two devices; no constant was made from them, and the row that one was made from is
    left out. Median 3%, nine of ten within 6%: Megatron's overlap of 2022 is taken for the 15B rows, which have a
    better one (below)."""
    said = PUBLISHED["korthikanti"]["milliseconds"]
    layer = [pair for name, row in layer_of_22b().items() for pair in zip(row, said[name], strict=True)]
    assert layer[0][0] == pytest.approx(layer[0][1], rel=0.01), "the fitted one"
    found = [abs(error) for error in errors(layer[1:]) + errors(a100_of_2021()) + errors(nemotron("backward"))]
    assert len(found) == 21 and max(found[:13]) < 0.06, "what the chapter says of the A100s"
    assert median(found) < 0.03 and quantiles(found, n=10)[-1] < 0.06 and max(found) < 0.07


def test_sequence_parallelism_saves_the_half_millisecond_that_it_saved():
    """7.7 to 7.2 ms: what the norms, the dropouts and the residual sums of a forward move, but an eighth."""
    rows, said = layer_of_22b(), PUBLISHED["korthikanti"]["milliseconds"]
    saved = rows["base"][0] - rows["sequence"][0]
    assert saved == pytest.approx(said["base"][0] - said["sequence"][0], abs=0.1)


def test_15b_lies_between_chunks_that_cost_nothing_and_megatrons_backward():
    """NVIDIA's 15B runs cut gathers and scatters into chunks. With chunks that cost nothing the model is 5 to 10% too
    quick, with Megatron's overlap of 2022 2 to 6% too slow, with all exposed 9 to 14%. That the step grows by 5% from
    16 to 2,048 GPUs is not in it: stragglers, and what the network adds, are not modelled."""
    chunks, backward, none = (errors(nemotron(overlap)) for overlap in reversed(OVERLAPS))
    assert all(-0.1 < error < -0.05 for error in chunks)
    assert all(0.01 < error < 0.07 for error in backward)
    assert all(0.09 < error < 0.15 for error in none)


def test_eight_v100_work_at_77_per_cent_of_one():
    """The ratio, not the rates: those are 1.5 times too high here, for products of hidden 1,536 on a V100 reach less
    than the share of an A100's peak."""
    said, rates = PUBLISHED["megatron_2019"], []
    for row in said["rows"]:
        shape = Shape(row["layers"], row["hidden"], row["heads"], said["vocab"], max_seq=said["seq"])
        layout = Layout(tp=row["tp"])
        rates.append(step_seconds(
            shape, said["batch"], said["seq"], layout, on(row["tp"], said["inside"], DEVICES[said["device"]]),
            Recipe("bf16-master", attention="naive", dropout=0.1, checkpointing="full"),
        ).hfu)  # fmt: skip
    assert rates[1] / rates[0] == pytest.approx(said["scaling"], abs=0.02)
