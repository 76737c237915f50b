"""Which framework runs a program: what Accelerate is asked for, what each refuses, and how it cuts a block."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from cases import each, refused

from scaleout.collectives.job import traffic
from scaleout.memory.job import fullest
from scaleout.spec import frameworks
from scaleout.spec.devices import DEVICES
from scaleout.spec.frameworks import RUNS, accelerate, lines, refusal, trained, usual
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, total_parameters

KNOWN = json.loads((Path(__file__).parents[1] / "published" / "launchers.json").read_text())["accelerate"]["options"]
NODE = Job(PRESETS["llama-3-8b"], 8192, DEVICES["h100-sxm"], cluster(2, 8), 2, Layout(dp=16, micro_batches=4))


def hugging(layout, recompute="none", batch=1, **more):
    """Llama 3 8B on whole nodes."""
    nodes = cluster(max(1, layout.ranks // 8), min(8, layout.ranks))
    job = replace(NODE, cluster=nodes, layout=layout, batch=batch, program=PROGRAMS["huggingface"])
    recipe = trained(job.program, layout, replace(NODE.recipe, checkpointing=recompute))
    return job.other(recipe=replace(recipe, **more))


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
        (Layout(dp=2), {"precision": "bf16-master", "buckets": "none"}, "use precision autocast-bf16"),
        (Layout(dp=2, zero=3), {"precision": "autocast-bf16"}, "use precision bf16-master without main_gradients"),
        (Layout(dp=2, zero=3), {"main_gradients": "instead"}, "use precision bf16-master without main_gradients"),
        (Layout(dp=2), {"precision": "bf16", "buckets": "none"}, "use precision autocast-bf16"),
        (Layout(dp=2), {"loss": "fused"}, "Transformers has no fused loss: use loss eager"),
        (Layout(dp=2), {"loss": "chunked"}, "only with Liger's other kernels, which are not priced: use loss eager"),
    ]
)
def test_what_accelerate_cannot_do_is_one_line(layout, more, words):
    refused(lambda: accelerate(hugging(layout, **more)), words)


def test_accelerate_trains_fp32_weights_under_autocast_and_reduces_shards_in_bf16():
    """16 bytes a parameter and DDP's buckets of fp32 gradients beside them; sharded it is 16, reduced in 2
    (accelerate 1.15.0, utils/dataclasses.py: MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16))."""
    whole, sharded, alone = (hugging(layout) for layout in (Layout(dp=8), Layout(dp=8, zero=3), Layout(tp=8)))
    count = total_parameters(NODE.shape)
    for job, width in ((whole, 20), (sharded, 16 / 8)):
        assert sum(fullest(job).states.values()) == pytest.approx(width * count, rel=1e-3)
    sent = [sum(axis.bytes for axis in traffic(job).values()) for job in (whole, sharded)]
    assert sent == pytest.approx([2 * 7 / 8 * 4 * count, 7 / 8 * (2 + 2 * 2) * count], rel=1e-3)
    assert alone.recipe.buckets == "none" and whole.recipe.keeps_gradients and sharded.recipe.keeps_gradients
    for precision, said in (("fp32", "no"), (whole.recipe.precision, "bf16")):
        assert f"--mixed-precision {said}" in accelerate(whole.other(precision=precision))


def test_transformers_compiles_by_an_option_of_the_trainer():
    eager = hugging(Layout(dp=8, zero=3))
    compiled = replace(eager, program=PROGRAMS["huggingface-compiled"])
    assert set(lines(compiled)) - set(lines(eager)) == {"--torch_compile true"} and refusal(compiled) == ""
    assert trained(compiled.program, compiled.layout, eager.recipe) == eager.recipe


def test_megatron_trains_with_its_own_operations():
    recipe = Recipe("bf16-master", main_gradients="instead")
    theirs = trained(PROGRAMS["megatron"], Layout(tp=8, sequence_parallel=True), recipe)
    assert theirs == replace(recipe, operations="megatron")
    before = trained(PROGRAMS["megatron-2021"], Layout(tp=8), recipe)
    assert before == recipe, "whose attention and norms were not those of Transformer Engine"


@each([("megatron", "fp32"), ("compiled", "bf16-master"), ("huggingface", "fp32"), ("huggingface", "bf16")])
def test_of_other_programs_and_precisions_the_recipe_stays(program, precision):
    recipe = Recipe(precision, main_gradients="instead" if precision == "bf16-master" else "none")
    assert trained(PROGRAMS[program], Layout(dp=8, zero=3), recipe) == recipe


def test_accelerate_has_one_order_of_ranks():
    refused(lambda: accelerate(replace(hugging(Layout(dp=2)), order=("dp", "pp", "cp", "tp"))), "no other way")
    refused(lambda: accelerate("dp=2"), "job must be a Job")


def test_a_program_s_jobs_are_run_by_its_framework():
    assert "pretrain_gpt.py" in lines(NODE) and "--attention-backend fused" in lines(NODE)
    assert "--compile.enable" in lines(NODE.other(program="compiled", zero=3))
    assert "--compile.enable" not in lines(NODE.other(program="eager", zero=3))
    assert "train.py" in lines(hugging(Layout(dp=16, zero=3)))
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


def test_torchtitan_s_options_are_printed_for_models_that_it_has():
    """Of others it says so; they are priced all the same, and the book's own job has them."""
    titan = NODE.other(program="compiled", zero=3, seq=1024)
    for model, has in (("llama-2-7b", True), ("llama-3-70b", True), ("gpt2-xl", False), ("zero-1t", False)):
        job = titan.other(shape=model)
        assert refusal(job) == ""
        if has:
            assert "-m torchtitan.train" in lines(job)
        else:
            refused(lambda job=job: lines(job), "torchtitan has Llama's blocks, and none like GPT's")
    assert "pretrain_gpt.py" in lines(NODE.other(shape="gpt-3-175b", seq=2048))
    gpt = hugging(Layout(dp=16, zero=3)).other(shape="gpt2-medium", seq=1024)
    assert "train.py" in lines(gpt)
    refused(lambda: lines(gpt.other(tp=2)), "no tensor parallelism for GPT-2's blocks: use tp 1")


def test_every_framework_runs_a_block_as_it_usually_cuts_it():
    for name in RUNS:
        layout = Layout(dp=2, tp=8, zero=1 if name == "megatron" else 3, **usual(PROGRAMS[name], 8))
        recipe = trained(PROGRAMS[name], layout, NODE.recipe)
        assert refusal(NODE.other(layout=layout, program=name, recipe=recipe)) == "", name
    assert usual(PROGRAMS["composer"], 2) == {"sequence_parallel": True, "gather_again": True}
    assert usual(PROGRAMS["huggingface"], 2)["sequence_parallel"] is usual(PROGRAMS["megatron"], 1)["sequence_parallel"]
