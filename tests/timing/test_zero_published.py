"""Seconds of ZeRO against what others measured, and what the model leaves out. No constant comes from these rows but
one: what an update reaches of host memory, from a row that is then left out."""

import json
from math import prod
from pathlib import Path
from statistics import median, quantiles

import pytest

from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape, flops, total_parameters
from scaleout.timing.zero import HOST_REACHES, Host, from_device, slot, update_bytes

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "zero_seconds.json").read_text())
RECIPE = Recipe("bf16-master", checkpointing="full")


def selene(nics):
    """[(row, predicted step, published seconds)] of ZeRO-3 on nodes with so many adapters."""
    said, out = PUBLISHED["narayanan"], []
    for row in said["rows"]:
        sizes = said["models"][row["params_B"]]
        shape = Shape(*sizes.values(), said["vocab"], max_seq=said["seq"])
        assert total_parameters(shape) / 1e9 == pytest.approx(float(row["params_B"]), abs=0.06)
        batch, gpus = row["batch"] // row["gpus"], row["gpus"]
        on = cluster(gpus // 8, 8, said["inside"], said["across"], nics)
        found = from_device(shape, batch, said["seq"], DEVICES[said["device"]], on, RECIPE, Layout(dp=gpus, zero=3))
        done = sum(flops(shape, batch, said["seq"], "full").values())
        out.append((row, found, done / row["tflops"] / 1e12))
    return out


def spread(errors):
    errors = [abs(error) for error in errors]
    return median(errors), quantiles(errors, n=10, method="inclusive")[-1]


def test_the_rows_agree_with_themselves():
    """Days for 300 billion tokens, from the rate alone: the published ones within 2%."""
    for row, found, seconds in selene(8):
        days = 300e9 / (row["batch"] * 2048) * seconds / 86_400
        assert days == pytest.approx(row["days"], rel=0.02), (row, found)


def test_narayanans_zero_3():
    """With four sequences a GPU, where nothing of the wire shows, 6 and 10% too quick. With two and with one the
    published step takes as long with either (67 and 180 to 184 s): it waits for weights, and the model, at NCCL's rate
    over all eight adapters, hides all of that. Over the six rows: median 39%, nine of ten within 69%."""
    rows = selene(8)
    errors = {(row["params_B"], row["batch"] // row["gpus"]): found.seconds / said - 1 for row, found, said in rows}
    assert all(found.parts["exposed communication"] < 0.01 * found.seconds for _, found, _ in rows)
    assert [round(errors[size, 4], 2) for size in ("174.6", "529.6")] == [-0.06, -0.10]
    middle, most = spread(errors.values())
    assert middle == pytest.approx(0.39, abs=0.01) and most == pytest.approx(0.69, abs=0.02)


def test_what_the_rest_of_those_rows_would_take():
    """Three pieces in 67 and 182 s are 16 to 18 GB/s: not a tenth of what eight adapters of 25 carry, and less than
    one. As if nodes had one adapter: median 21%, nine of ten within 31%; with blocks gathered once more to be run
    again, four pieces, all within 11%. Which of it was so in that DeepSpeed the paper does not say."""
    rates, once_more = [], []
    for (row, found, said), (_, one, _) in zip(selene(8), selene(1), strict=True):
        if row["batch"] > 2.5 * row["gpus"]:
            once_more.append(max(found.seconds, one.wire * 4 / 3) / said - 1)
            continue
        rates.append(3 * 2 * 1e9 * float(row["params_B"]) / said / 1e9)
        once_more.append(one.wire * 4 / 3 / said - 1)
    assert all(15.5 < rate < 18 for rate in rates) and len(rates) == 4
    assert max(map(abs, once_more)) < 0.11
    middle, most = spread(one.seconds / said - 1 for _, one, said in selene(1))
    assert middle == pytest.approx(0.21, abs=0.01) and most == pytest.approx(0.31, abs=0.01)


def test_adam_on_a_cpu():
    """Bound by memory: 28 bytes a parameter at half of its rate, fitted to 1e9 parameters, 15% too quick for 4e9 and
    10e9. PyTorch's own, operation by operation, takes 5.5 to 6.5 times as long."""
    said = PUBLISHED["cpu_adam"]
    host = Host(prod(float(one) for one in said["memory_bytes_per_s"].split("*")) * HOST_REACHES)
    found = {size: float(size) * update_bytes(Recipe("fp32")) / host.memory_bytes_per_s for size in said["seconds"]}
    errors = {size: found[size] / fused - 1 for size, (fused, _) in said["seconds"].items()}
    assert errors.pop(said["fitted"]) == pytest.approx(0, abs=0.01), "the fitted one"
    assert all(error == pytest.approx(-0.15, abs=0.01) for error in errors.values())
    assert all(5.5 < slow / fused < 6.5 for fused, slow in said["seconds"].values())


def test_ten_billion_on_one_v100():
    """40 TFLOP/s published, 54 here: half of a V100's peak is more than its kernels gave (30 without offload, for a
    model that fits), and what is left after it is the host's update, which the paper's runs show too."""
    said, cpu = PUBLISHED["offload_10b"], PUBLISHED["cpu_adam"]
    host = Host(prod(float(one) for one in cpu["memory_bytes_per_s"].split("*")) * HOST_REACHES)
    shape = Shape(said["layers"], said["hidden"], said["heads"], said["vocab"], max_seq=said["seq"])
    device, on = DEVICES[said["device"]], cluster(1, 1, "nvlink2")
    found = from_device(shape, said["batch"], said["seq"], device, on, RECIPE, Layout(zero=2), offload="optimizer",
                        host=host)  # fmt: skip
    assert total_parameters(shape) == pytest.approx(10e9, rel=0.03)
    assert found.hfu * 125 / said["tflops"] == pytest.approx(1.35, abs=0.02)
    assert found.parts["exposed host"] == 0 and 0.12 < found.parts["update"] / found.seconds < 0.16


def test_pcie_of_a_v100():
    """The share of the slot's rate that copies reach is NCCL's, and gives what ZeRO-Infinity found."""
    said = PUBLISHED["pcie"]
    assert slot(DEVICES[said["device"]]).bytes_per_s / 1e9 == pytest.approx(said["gb_per_s"], rel=0.01)
