"""What a view says to a value that its controls cannot take: one line, with what they can."""

import pytest
from cases import refused

from scaleout import views

REFUSED = [
    ("memory", {"model": "llama"}, "model must be one of"),
    ("memory", {"batch": 0}, "batch must be from 1 to 64"),
    ("memory", {"batch": float("nan")}, "finite"),
    ("memory", {"batch": "many"}, "must be a number"),
    ("memory", {"gpus": 10**30}, "from 1 to 1,024"),
    ("memory", {"sequence": 1}, "has no parameter 'sequence'"),
    ("memory", {"gib": 1}, "True or False"),
    ("collectives", {"ranks": 1}, "ranks must be from 2 to 1,024"),
    ("collectives", {"ranks": 2.5}, "whole number"),
    ("collectives", {"algorithm": "hierarchical"}, "algorithm must be one of ring, tree, naive"),
    ("collectives", {"link": "nvlink9"}, "link must be one of node-ib"),
    ("collectives", {"size": 0}, "size must be from 0.001 to 10,000"),
    ("collectives", {"world": 8}, "has no parameter 'world'"),
    ("collectives", {"alpha": -1}, "alpha must be from 0.1"),
    ("collectives", {"step": 31}, "step must be from 0 to 30"),
    ("ddp", {"ranks": 513}, "ranks must be from 1 to 512"),
    ("ddp", {"ranks": 1.5}, "ranks must be a whole number"),
    ("ddp", {"model": "llama-2-70b"}, "model must be one of gpt2"),
    ("ddp", {"link": "wifi"}, "link must be one of node-ib"),
    ("ddp", {"bucket": 0}, "bucket must be from 1 to 10,000 MiB"),
    ("ddp", {"overlap": 1}, "True or False"),
    ("fsdp", {"ranks": "12"}, "ranks must be one of 1, 2, 4, 8"),
    ("fsdp", {"prefetch": 5}, "prefetch must be from 0 to 4"),
    ("fsdp", {"wrap": "head"}, "wrap must be one of layer, block, size, model"),
    ("fsdp", {"offload": 1}, "True or False"),
    ("fsdp", {"model": "zero-1t"}, "model must be one of gpt2"),
    ("pipeline", {"ranks": 65}, "ranks must be from 2 to 64"),
    ("pipeline", {"schedule": "pipedream"}, "schedule must be one of gpipe, 1f1b"),
    ("pipeline", {"order": "F0.F1"}, "order must be 3 rows"),
    ("tensor", {"tp": 3}, "tp must be one of 2, 4, 8"),
    ("tensor", {"up": "diagonal"}, "up must be one of columns, rows, copies"),
    ("tensor", {"sequence": 1}, "True or False"),
    ("zero", {"stage": 4}, "stage must be one of 0, 1, 2, 3"),
    ("zero", {"ranks": 16}, "ranks must be one of 2, 4, 8"),
    ("zero", {"keep": 1}, "True or False"),
    ("recompute", {"dropped": 101}, "dropped must be from 0 to 100 %"),
    ("recompute", {"order": "best"}, "order must be one of cheapest, as it runs, dearest"),
    ("recompute", {"tp": 16}, "tp must be one of 1, 2, 4, 8"),
    ("precision", {"format": "fp32"}, "format must be one of fp16, bf16, e5m2, e4m3, e2m1"),
    ("mesh", {"gpus": 12}, "gpus must be one of 8, 16, 32"),
    ("mesh", {"order": "pp.tp"}, "order must hold pp, dp, tp once each in row 1"),
    ("mesh", {"rank": 16384}, "rank must be from 0 to 16,383"),
    ("mesh", {"link": "wifi"}, "link must be one of ib-ndr"),
    ("planner", {"gpus": 12}, "gpus must be one of 1, 2, 3, 4, 6, 8, 16, 24"),
    ("planner", {"sequences": "many"}, "sequences must be one of 8, 10, 12, 14, 16"),
    ("planner", {"tp": 3}, "tp must be one of 1, 2, 4, 8, 16"),
    ("planner", {"price": -1}, "price must be from 0"),
    ("finetune", {"gpus": 16}, "gpus must be one of 1, 2, 4, 8"),
    ("finetune", {"seq": 3000}, "seq must be one of 512, 1024"),
    ("finetune", {"model": "gpt-5"}, "model must be one of llama-3.1-8b"),
    ("finetune", {"tokens": 0}, "tokens must be from 0.1"),
    ("finetune", {"config": "[]"}, "a config.json is an object, from { to }"),
    ("capstone", {"world": 5000}, "world must be from 1 to 4,096"),
    ("capstone", {"model": "zero-1t"}, "model must be one of gpt2"),
    ("capstone", {"sharding": "zero"}, "sharding must be one of full, hybrid, ddp"),
    ("capstone", {"own_2": -1}, "own_2 must be from"),
    ("capstone", {"seq": 100}, "seq must be one of 512"),
    ("capstone", {"program": "jax"}, "program"),
]


@pytest.mark.parametrize(("stem", "params", "words"), REFUSED, ids=str)
def test_bad_input_is_one_line(stem, params, words):
    refused(lambda: views.render(stem, params), words)
