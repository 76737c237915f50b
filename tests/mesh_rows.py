"""Published steps on a mesh, each beside what `timing.mesh` tells of it: the rows that judge the model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from scaleout.spec.hardware import DEVICES
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing.mesh import step
from scaleout.timing.mesh_machine import machine

FOLDER = Path(__file__).parent / "published"
PUBLISHED, FP8, TABLE, RATES, FSDP = (
    json.loads((FOLDER / name).read_text())
    for name in ("mesh.json", "fp8.json", "megatron_2021.json", "training_throughput.json", "fsdp_by_gpus.json")
)
H100 = PUBLISHED["h100"]["rows"]


def run(name, gpus):
    """(shape, batch, seq, layout, recipe) of a row."""
    row = H100[name]
    shape = PRESETS[row["model"]] if "model" in row else Shape(**row["shape"])
    shape = replace(shape, layers=row.get("layers", shape.layers), vocab=row.get("vocab", shape.vocab))
    tp, cp, pp, v = (row.get(key, 1) for key in ("tp", "cp", "pp", "chunks"))
    layout = Layout(gpus // (tp * cp * pp), tp, pp, 1, tp > 1, chunks=v, micro_batches=row["m"], cp=cp,
                    schedule="interleaved" if v > 1 else "1f1b")  # fmt: skip
    recipe = Recipe("bf16-master", dropout=row.get("dropout", 0.0), checkpointing=row.get("checkpointing", "none"),
                    main_gradients=row.get("main_gradients", "none"), gradients="kept")  # fmt: skip
    return shape, row["batch"], row["seq"], layout, recipe


@cache
def h100(name, share=None):
    """[(GPUs, the model's step, published seconds)] of a model. share: that products reach, where it is another."""
    row, out, device = H100[name], [], DEVICES[PUBLISHED["h100"]["device"]]
    steps = FP8["steps"][row["steps"]] if "steps" in row else {"gpus": row["gpus"], "bf16_seconds": row["seconds"]}
    for gpus, seconds in zip(steps["gpus"], steps["bf16_seconds"], strict=True):
        *job, layout, recipe = run(name, gpus)
        nodes = cluster(-(-gpus // 8), 8, PUBLISHED["h100"]["inside"], PUBLISHED["h100"]["across"])
        on = machine(device, nodes, layout, share=share)
        out.append((gpus, step(*job, layout, device, nodes, recipe, on=on), seconds))
    return out


@cache
def a100():
    """[(parameters in billions, predicted TFLOP/s a GPU, published)]; the paper counts what is recomputed."""
    out, said = [], PUBLISHED["a100"]
    rates = {row["params_B"]: row for row in RATES["megatron"]["table1"]}
    for row in TABLE["table1"]:
        run, (tp, pp) = rates[row["params_B"]], said["tp_pp"][str(row["params_B"])]
        dp, batch = run["gpus"] // (tp * pp), 4 if pp == 1 else 1
        v = 1 if pp == 1 else next(v for v in range(2, row["layers"]) if not row["layers"] % (pp * v))
        layout = Layout(dp, tp, pp, chunks=v, micro_batches=run["batch"] // dp // batch,
                        schedule="interleaved" if v > 1 else "1f1b")  # fmt: skip
        shape = Shape(row["layers"], row["hidden"], row["heads"], TABLE["vocabulary"], max_seq=TABLE["sequence"])
        recipe = Recipe("bf16-master", attention="naive", dropout=0.1, checkpointing="full", gradients="kept")
        time = step(shape, batch, TABLE["sequence"], layout, DEVICES[said["device"]],
                    cluster(run["gpus"] // 8, 8, said["inside"], said["across"]), recipe, overlap="none",
                    hide_data=False)  # fmt: skip
        out.append((row["params_B"], time.hfu * RATES["megatron"]["peak_flop_per_s"] / 1e12, run["tflops_per_gpu"]))
    return out


@cache
def a100_of_2022():
    """[(parameters in billions, predicted MFU, published)]: selective recomputation, sequence parallelism."""
    out, said = [], PUBLISHED["a100_2022"]
    for row in said["rows"]:
        v = row["chunks"]
        layout = Layout(1, row["tp"], row["pp"], sequence_parallel=True, chunks=v, micro_batches=row["m"],
                        schedule="interleaved" if v > 1 else "1f1b")  # fmt: skip
        shape = Shape(row["layers"], row["hidden"], row["heads"], said["vocab"], max_seq=said["seq"])
        recipe = Recipe("bf16-master", attention="naive", dropout=0.1, checkpointing="selective", gradients="kept")
        nodes = cluster(layout.ranks // 8, 8, said["inside"], said["across"])
        time = step(shape, row["batch"], said["seq"], layout, DEVICES[said["device"]], nodes, recipe,
                    overlap="backward")  # fmt: skip
        out.append((row["params_B"], time.mfu, row["mfu"]))
    return out


@cache
def bloom():
    """(the model's step, published seconds), on another program and another network."""
    said = PUBLISHED["bloom"]
    layout = Layout(said["dp"], said["tp"], said["pp"], 1, micro_batches=said["m"])
    nodes = cluster(said["gpus"] // 8, 8, said["inside"], said["across"], nics=said["nics"])
    recipe = Recipe("bf16-master", attention="naive", dropout=0.1, checkpointing="full", main_gradients="instead")
    time = step(Shape(**said["shape"]), said["batch"], said["seq"], layout, DEVICES[said["device"]], nodes, recipe,
                overlap="none", hide_data=False)  # fmt: skip
    return time, said["seconds"]


def own_run(chunks):
    """[(GPUs, predicted seconds, published)] of 340B's own training run, whose report gives no number of chunks."""
    row, out = PUBLISHED["own_run"], []
    for gpus, sequences, seconds in zip(row["gpus"], row["sequences"], row["seconds"], strict=True):
        dp = gpus // (row["tp"] * row["pp"])
        layout = Layout(dp, row["tp"], row["pp"], 1, True, chunks=chunks, micro_batches=sequences // dp,
                        schedule="interleaved")  # fmt: skip
        time = step(run("340B", 128)[0], 1, row["seq"], layout, DEVICES["h100-sxm"], cluster(gpus // 8, 8),
                    Recipe("bf16-master", gradients="kept"))  # fmt: skip
        out.append((gpus, time.seconds, seconds))
    return out


def by_fsdp():
    """{series: {GPUs: tokens a second that are told, by those published}} of FSDP by PyTorch's own on H100s.

    torchtitan's selective recomputation, which the book's recipes have not, is told as none.
    """
    out = {}
    for one in FSDP["series"]:
        if one["devices"] != ["h100-sxm"]:
            continue
        shape = PRESETS[one["preset"]] if "preset" in one else Shape(**one["shape"], max_seq=one["seq"])
        recipe = Recipe("bf16-master", checkpointing="full" if one["checkpointing"] == "full" else "none")
        whole = "tokens_per_second" in one
        rates = one["tokens_per_second" if whole else "tokens_per_second_per_gpu"]
        for gpus, rate in ((int(n), rate) for n, rate in rates.items()):
            time = step(shape, one["micro_batch"], one["seq"], Layout(gpus, zero=3, micro_batches=one["passes"]),
                        DEVICES["h100-sxm"], cluster(-(-gpus // 8), 8), recipe)  # fmt: skip
            out.setdefault(one["name"], {})[gpus] = time.tokens_per_second / rate / (1 if whole else gpus)
    return out


def errors(name):
    return [time.seconds / said - 1 for _, time, said in h100(name)]


def judged():
    """Errors of the rows that no constant was made from."""
    fitted = PUBLISHED["h100"]["fitted"]
    rates = [said / ours - 1 for _, ours, said in (*a100(), *a100_of_2022())]
    return [e for name in H100 if name != fitted for e in errors(name)] + rates + [bloom()[0].seconds / bloom()[1] - 1]
