"""Which framework runs a program: what Accelerate is asked for, what each refuses, and how it cuts a block."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

from cases import each, refused

from scaleout.spec import frameworks
from scaleout.spec.devices import DEVICES
from scaleout.spec.frameworks import RUNS, accelerate, lines, refusal, usual
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS

KNOWN = json.loads((Path(__file__).parents[1] / "published" / "launchers.json").read_text())["accelerate"]["options"]
NODE = Job(PRESETS["llama-3-8b"], 8192, DEVICES["h100-sxm"], cluster(2, 8), 2, Layout(dp=16, micro_batches=4))


def hugging(layout, recompute="none", batch=1, **more):
    """Llama 3 8B on whole nodes."""
    nodes = cluster(max(1, layout.ranks // 8), min(8, layout.ranks))
    recipe = replace(NODE.recipe, checkpointing=recompute, **more)
    return replace(NODE, cluster=nodes, layout=layout, batch=batch, recipe=recipe, program=PROGRAMS["huggingface"])


@each(
    [
        (Layout(dp=8, zero=3), "none"),
        (Layout(dp=16, zero=3), "full"),
        (Layout(dp=4, tp=2, cp=2, zero=3), "none"),
        (Layout(dp=2), "full"),
        (Layout(tp=8), "none"),
        (Layout(dp=2, zero=3, micro_batches=4), "none"),
    ]
)
def test_accelerate_s_options_are_its_own_and_give_back_the_ranks(layout, recompute):
    found = accelerate(hugging(layout, recompute, 3))
    place = found.index("train.py")
    words = [shlex.split(line) for line in found[1:place]]
    said = {
        words[i]: words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else True
        for words in words
        for i in range(len(words))
        if words[i].startswith("--")
    }
    said |= dict(re.findall(r"--(num-\w+) (\d+)", found[0]))
    assert int(said.pop("num-processes")) == layout.ranks and int(said.pop("num-machines")) == max(1, layout.ranks // 8)
    for option, value in said.items():
        kind = KNOWN[option]
        assert value is True if kind == "flag" else kind in ("int", "text") or value in kind, option
    assert ("--use-fsdp" in said) == (layout.zero == 3)
    if "--use-parallelism-config" in said:
        names = ("dp-shard", "tp", "cp")
        assert [int(said[f"--parallelism-config-{name}-size"]) for name in names] == [layout.dp, layout.tp, layout.cp]
    assert found[place + 1 :][:2] == ("--per_device_train_batch_size 3", f"--gradient_accumulation_steps {layout.m}")
    asked = {"--fsdp-activation-checkpointing true", "--gradient_checkpointing true"} & set(found)
    assert len(asked) == (recompute == "full")


EACH = """--accelerator_config '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'"""


@each(
    [
        (Layout(dp=8, zero=3, micro_batches=4), {}, True),  # the price scatters gradients at every micro-batch
        (Layout(dp=8, zero=3), {}, False),
        (Layout(dp=8, zero=3, micro_batches=4), {"every_pass": False}, False),  # the Trainer's own way
        (Layout(dp=8, micro_batches=4), {}, False),  # and DDP's
        (Layout(dp=8, micro_batches=4), {"every_pass": True}, True),
        (Layout(tp=8, micro_batches=4, zero=3), {}, False),
    ]
)
def test_accelerate_reduces_gradients_at_the_micro_batches_that_were_priced(layout, replicas, each_batch):
    job = hugging(layout).other(**replicas)
    assert (EACH in accelerate(job)) == each_batch
    if each_batch:
        words = shlex.split(EACH)  # one word of a shell, which the Trainer reads as JSON
        assert json.loads(words[1]) == {"gradient_accumulation_kwargs": {"sync_each_batch": True}}


def test_accelerate_passes_keys_and_values_as_they_were_priced():
    job = hugging(Layout(dp=4, cp=2, zero=3))
    assert "--parallelism-config-cp-comm-strategy alltoall" in accelerate(job)
    assert "--parallelism-config-cp-comm-strategy allgather" in accelerate(job.other(context="gather"))
    refused(lambda: accelerate(job.other(context="gather", gather_again=False)), "use gather_again True")
    assert not [line for line in accelerate(hugging(Layout(dp=4, tp=2, zero=3))) if "comm-strategy" in line]


@each(
    [
        (Layout(dp=2, pp=2), {}, "Accelerate trains no pipeline: use pp 1, not 2"),
        (Layout(dp=2, zero=1), {}, "it has no ZeRO 1: use zero 0 or 3"),
        (Layout(dp=2, tp=2, zero=3, sequence_parallel=True), {}, "use sequence_parallel False"),
        (Layout(dp=2, tp=2), {}, "no replicas beside tensor or context parallelism: use zero 3"),
        (Layout(dp=2, cp=2), {}, "use zero 3"),
        (Layout(dp=2, zero=3), {"recompute": "selective"}, "use none or full, not selective"),
        (Layout(dp=2), {"loss": "fused"}, "Transformers has no fused loss: use loss eager"),
        (Layout(dp=2), {"loss": "chunked"}, "only with Liger's other kernels, which are not priced: use loss eager"),
    ]
)
def test_what_accelerate_cannot_do_is_one_line(layout, more, words):
    refused(lambda: accelerate(hugging(layout, **more)), words)


def test_accelerate_has_one_order_of_ranks():
    refused(lambda: accelerate(replace(hugging(Layout(dp=2)), order=("dp", "pp", "cp", "tp"))), "no other way")
    refused(lambda: accelerate("dp=2"), "job must be a Job")


def test_a_program_s_jobs_are_run_by_its_framework():
    assert "pretrain_gpt.py" in lines(NODE) and "--attention-backend fused" in lines(NODE)
    assert "--compile.enable" in lines(NODE.other(program="compiled", zero=3))
    assert "--compile.enable" not in lines(NODE.other(program="eager", zero=3))
    assert "train.py" in lines(NODE.other(program="huggingface", zero=3))
    assert "-m torchtitan.train" in lines(NODE.other(zero=3, gather_again=False), frameworks.TORCHTITAN)
    refused(lambda: lines(NODE.other(program="composer")), "no framework's options are known for Composer of 2023")


@each(
    [
        ({"program": "compiled", "zero": 1}, "torchtitan splits gradients too"),
        ({"program": "huggingface", "pp": 2}, "Accelerate trains no pipeline"),
        ({"zero": 3, "pp": 2}, "Megatron-LM has no ZeRO 3 with a pipeline"),
        ({"loss": "fused"}, "Megatron-LM refuses Transformer Engine's fused loss"),
        ({"program": "compiled", "zero": 3, "loss": "chunked"}, ""),
        ({}, ""),
        ({"program": "composer", "loss": "fused"}, ""),
    ]
)
def test_a_refusal_is_the_framework_s_line(changes, said):
    found = refusal(NODE.other(**changes))
    assert found.startswith(said) and (found == "") == (said == "") and "\n" not in found


def test_every_framework_runs_a_block_as_it_usually_cuts_it():
    for name in RUNS:
        layout = Layout(dp=2, tp=8, zero=1 if name == "megatron" else 3, **usual(PROGRAMS[name], 8))
        assert refusal(NODE.other(layout=layout, program=name)) == "", name
    assert usual(PROGRAMS["composer"], 2) == {"sequence_parallel": True, "gather_again": True}
    assert usual(PROGRAMS["huggingface"], 2)["sequence_parallel"] is usual(PROGRAMS["megatron"], 1)["sequence_parallel"]
