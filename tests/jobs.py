"""Random jobs that can be, for tests that hold every door to the same number."""

from __future__ import annotations

import json
import random

from repo import ROOT

from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing import compute, exchange, machine
from scaleout.timing.ddp import Layer

CONFIGS = json.loads((ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))["models"]
KINDS = ("Gemma 2 9B", "Gemma 3 4B, its text model", "Mistral 7B v0.1", "Qwen3 8B", "OLMo 2 7B", "Falcon 7B",
         "Pythia 6.9B", "Mixtral 8x7B", "Qwen1.5 MoE A2.7B", "Qwen3 30B A3B", "DeepSeek V2 Lite", "DeepSeek V2",
         "gpt-oss 20B")  # fmt: skip
MODELS = ("gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-3-70b", "gpt-3-175b")


H100, NODE = DEVICES["h100-sxm"], cluster(1, 8)
BF16 = Recipe("bf16-master", main_gradients="instead")
TOKENS = 8192  # of a micro-batch of `on_a_node`


def on_a_node(name: str, program: str = "megatron", seq: int = TOKENS, recipe: Recipe = BF16, **changes) -> Job:
    """A model of the book or of the published configurations on 8 H100, ZeRO-1, a sequence for each."""
    shape = PRESETS.get(name) or Shape.from_config(CONFIGS[name]["config"])
    job = Job(shape, seq, H100, NODE, 1, Layout(dp=8, zero=1), recipe, PROGRAMS[program])
    return job.other(**changes) if changes else job


def jobs(count: int, seed: int) -> list[Job]:
    """So many jobs; what cannot be is drawn again."""
    draw, out = random.Random(seed), []
    while len(out) < count:
        try:
            out.append(_job(draw))
        except ValueError:
            continue
    return out


def variants(count: int, seed: int) -> list[Job]:
    """The same of models with windows, caps, norms elsewhere, experts and latent attention, of adapters and of other
    optimizers."""
    draw, out = random.Random(seed), []
    while len(out) < count:
        shape = Shape.from_config(CONFIGS[draw.choice(KINDS)]["config"])
        adapter = draw.choice(("none", "none", "lora", "qlora"))
        changes = {
            "adapter": adapter,
            "adapter_rank": draw.choice((8, 64)),
            "adapter_targets": draw.choice(("all", "attention", "q+v")),
            "optimizer": draw.choice(("adamw", "adamw", "adamw-8bit", "lion", "adafactor")),
        }
        try:
            out.append(_job(draw, shape).other(**changes))
        except ValueError:
            continue
    return out


def _job(draw: random.Random, given: Shape | None = None) -> Job:
    shape = given or PRESETS[draw.choice(MODELS)]
    device = DEVICES[draw.choice(("a100-80gb", "h100-sxm", "h200", "b200"))]
    nodes = draw.choice((1, 1, 2, 4, 16, 64))
    each = 8 if nodes > 1 else draw.choice((1, 2, 4, 8))
    wide = cluster(nodes, each, device.link, draw.choice(("ib-ndr", "ib-hdr", "ethernet-100g")), draw.choice((1, 8)))
    tp, cp, pp = draw.choice((1, 1, 2, 4, 8)), draw.choice((1, 1, 1, 2)), draw.choice((1, 1, 1, 2, 4))
    chunks = draw.choice((1, 2)) if pp > 1 else 1
    zero = draw.choice((0, 1, 2, 3)) if pp == 1 else draw.choice((0, 1))
    layout = Layout(
        dp=max(1, wide.ranks // (tp * cp * pp)),
        tp=tp,
        cp=cp,
        pp=pp,
        zero=zero,
        sequence_parallel=tp > 1,
        chunks=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        micro_batches=pp * draw.choice((1, 2, 4)),
    )
    recipe = Recipe(
        "bf16-master",
        main_gradients="instead",
        checkpointing=draw.choice(("none", "selective", "full")),
        loss=draw.choice(("eager", "fused", "chunked")),
    )
    seq = min(shape.max_seq, draw.choice((1024, 2048, 4096)))
    replicas = Replicas(reshard=not (zero == 2 and draw.random() < 0.5))
    return Job(
        shape,
        seq,
        device,
        wide,
        draw.choice((1, 2, 4)),
        layout,
        recipe,
        PROGRAMS[draw.choice(tuple(PROGRAMS))],
        replicas,
    )


def layers(shape: Shape, batch: int = 1, seq: int = 8, checkpointing: str = "none") -> tuple[Layer, ...]:
    """The layers of a model in a micro-batch on one H100."""
    recipe = Recipe("bf16-master", checkpointing=checkpointing)
    job = Job(shape, seq, DEVICES["h100-sxm"], cluster(1, 1), batch, recipe=recipe)
    rank = machine.from_datasheet(job)
    return exchange.layers(job, (compute.block(job, rank), *compute.ends(job, rank)))
