"""A lab that is no lab: what steps under `fully_shard` allocate on real processes. Prints one JSON object on rank 0."""

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from bench_fsdp_memory import GPT, LLAMA

from scaleout.lab import session
from scaleout.measure.fsdp_memory import FsdpStep
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding

# name -> shape, recipe, sharding; 2 x 48 tokens on each of two processes
CASES = {
    "blocks": (LLAMA, Recipe("fp32"), Sharding(2)),
    "whole": (GPT, Recipe("fp32", "momentum"), Sharding(2, wrap="model")),
    "kept": (LLAMA, Recipe("fp32", checkpointing="full"), Sharding(2, reshard=False, prefetch=2)),
    "layers": (GPT, Recipe("fp32", checkpointing="full"), Sharding(2, wrap="layer")),
    "size": (LLAMA, Recipe("fp32", attention="naive"), Sharding(2, wrap="size", least_parameters=10_000, prefetch=0)),
    "bf16": (GPT, Recipe("fp32", gradients="kept"), Sharding(2, parameter="bf16")),
    "offload": (GPT, Recipe("fp32", checkpointing="selective"), Sharding(2, offload=True, parameter="bf16")),
    "copies": (replace(GPT, tied_head=False), Recipe("fp32"), Sharding(1, 2, reduce="bf16")),
}
BATCH, SEQ = 2, 48
STEPS = 3  # a gloo thread holds a message a moment longer at times: the least counts


def main(s, argv=None):
    found = {}
    for name, (shape, recipe, sharding) in CASES.items():
        step = FsdpStep(s, shape, BATCH, SEQ, recipe, sharding)
        steps = []
        for _ in range(STEPS):
            step.optimizer.zero_grad(set_to_none=not recipe.keeps_gradients)
            steps.append(step.measure())
        least = min(steps, key=lambda seen: seen.peak_bytes)
        found[name] = {"moments": least.moments, "collectives": least.collectives}
    s.say(json.dumps(found))


if __name__ == "__main__":
    session.run(main)
