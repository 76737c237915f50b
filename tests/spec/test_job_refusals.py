"""What a refusal of a job names is accepted: random jobs of which one thing, or two, cannot be."""

import json
import math
import random
import re
from dataclasses import replace

import pytest
from cases import refused
from jobs import jobs

from scaleout.memory.job import fullest
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.spec.variant import Experts, Latent, Variant
from scaleout.timing.job import step
from scaleout.timing.search import cut

BASES = jobs(60, 5)
# What a field may be asked to be; a value above 0 names it in a refusal by another word where that is given.
VALUES = {
    "tp": (1, 2, 3, 4, 5, 6, 8, 16, 32),
    "pp": (1, 2, 3, 4, 5, 8, 16, 64),
    "cp": (1, 2, 3, 4, 8, 16, 64),
    "dp": (1, 2, 3, 4, 7, 8, 16),
    "zero": (0, 1, 2, 3),
    "chunks": (1, 2, 3, 4, 7, 48),
    "micro_batches": (1, 2, 3, 5, 7, 8, None),
    "schedule": ("1f1b", "gpipe", "interleaved", "zb1", "zbv", "dualpipev"),
    "sequence_parallel": (True, False),
    "seq": (1, 7, 100, 511, 1000, 1023, 1025, 4096, 8193, 100_000),
    "tf32": (True,),
    "device": ("v100", "t4", "h100-sxm"),
    "precision": ("fp32", "bf16-master", "autocast-bf16"),
    "shards": (1, 2, 3, 4, 6, 16, None),
    "reshard": (True, False, 2, 3, 4, 8, 24),
    "offload": ("none", "optimizer", "parameters"),
    "offload_to": ("host", "nvme"),
    "compression": (1, 2),
    "attention": ("sdpa", "naive"),
    "context": ("ring", "gather"),
    "blocks": (None, (1, 2), (3, 4, 5)),
    "shape": ("gpt2", "gpt2-xl", "llama-3-8b", "gpt-3-175b", "zero-1t"),
}
NAMES = "|".join(VALUES)
WORDS = {"True": True, "False": False, "None": None}


def named(refusal):
    """The fields that a refusal names, the first alternative of several."""
    told = re.search(r"(?:use|need|works is) (.*)", refusal)[1].partition(", or ")[0]
    found = dict(re.findall(rf"\b({NAMES}) ([\w-]+)", told))
    for short, value in re.findall(r"\b([mv]) = (\d+)", told):
        found[{"m": "micro_batches", "v": "chunks"}[short]] = value
    if not found and (number := re.match(r"(?:at most )?([\d,]+)$", told)):
        subject = re.match(r"(tp) \d+ (?:does not divide (?:\d+ heads|the MLP)|and)|(shards)", refusal)
        found = {(subject[1] or subject[2]) if subject else "seq": number[1].replace(",", "")}
    assert found, refusal
    return {name: WORDS.get(value, int(value) if value.isdigit() else value) for name, value in found.items()}


def followed(base, changes):
    """The job that refusals lead to, and every refusal on the way: each names other values than those before."""
    said = []
    while len(said) < 6:
        try:
            return base.other(**changes), said
        except ValueError as error:
            said.append(str(error))
            assert said.count(said[-1]) == 1, said
            changes = changes | named(said[-1])
    raise AssertionError(said)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_refusal_names_leads_to_a_job(seed):
    """One that every door takes. A layout, which knows of no cluster, may name what the job then refuses."""
    draw = random.Random(seed)
    for _ in range(400):
        base = draw.choice(BASES)
        changes = {name: draw.choice(VALUES[name]) for name in draw.sample(list(VALUES), draw.choice((1, 1, 2)))}
        job, said = followed(base, changes)
        print(f"seed {seed}: {changes}: {said}")
        if said and draw.random() < 0.05:
            assert step(job).seconds > 0 and fullest(job).peak_bytes > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_is_named_by_a_job_is_accepted_at_once(seed):
    """Of parts that can be: what the job itself refuses."""
    draw = random.Random(100 + seed)
    for _ in range(400):
        base = draw.choice(BASES)
        name = draw.choice([name for name in VALUES if name not in ("precision", "shape")])
        changes = {name: draw.choice(VALUES[name])}
        _, said = followed(base, changes)
        own = [one for one in said if " = " not in one and "needs a pipeline" not in one and " of a job" not in one]
        assert len(own) <= 1, (changes, said)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"seq": 1024, "cp": 3}, "cp 3 cuts a sequence into 6 pieces, not 1,024 tokens: use 1,020"),
        ({"seq": 1023}, ""),
        ({"seq": 1000, "cp": 4, "tp": 5, "sequence_parallel": True}, ""),
        ({"seq": 1001, "cp": 4, "tp": 5, "sequence_parallel": True},
         "cp 4 cuts a sequence into 8 pieces, not 1,001 tokens: use 1,000"),
        ({"seq": 900, "cp": 600}, "cp 600 cuts a sequence into 1200 pieces, not 900 tokens: the nearest that works is "
                                  "dp 4, cp 450, tp 1, pp 1"),
    ],
)  # fmt: skip
def test_a_length_is_named_that_the_model_has_positions_for(changes, line):
    """GPT-2 XL, 25 heads and 1,024 positions, on 3,600 ranks or so."""
    ranks = 1800 if changes.get("cp") == 600 else 60
    base = Job(PRESETS["gpt2-xl"], 1024, DEVICES["h100-sxm"], cluster(ranks, 1), 1, Layout(dp=ranks))
    try:
        base.other(**changes)
        assert line == ""
    except ValueError as error:
        assert str(error) == line
        base.other(**changes | named(line))


def test_hybrid_shards_stand_in_a_node_or_in_whole_ones():
    """12 of 24 replicas neither divide a node of 8 nor fill some: the step said so, and the job had been accepted."""
    base = Job(PRESETS["gpt2"], 1024, DEVICES["h100-sxm"], cluster(3, 8), 1, Layout(dp=24, zero=3))
    for name in ("shards", "reshard"):
        with pytest.raises(ValueError, match=f"nor fill whole nodes of 3: use {name} 8$"):
            base.other(**{name: 12})
        assert step(base.other(**{name: 8})).seconds > 0


def test_tf32_is_refused_where_there_is_none():
    base = Job(PRESETS["gpt2"], 1024, DEVICES["v100"], cluster(1, 8), 1, Layout(dp=8))
    base = base.other(precision="fp32", main_gradients="none")
    with pytest.raises(ValueError, match="V100 SXM2 32 GB has no tf32 unit: use tf32 False"):
        base.other(tf32=True)
    assert base.other(device="a100-80gb", tf32=True).dtype == "tf32"


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_that_is_named_is_one(seed):
    draw = random.Random(seed)
    for _ in range(60):
        gpus, model = draw.choice((6, 8, 24, 48)), draw.choice(("gpt2-xl", "llama-3-8b"))
        seq = draw.choice((1000, 1024))
        job = Job(PRESETS[model], seq, DEVICES["h100-sxm"], cluster(gpus, 1), 1, Layout(dp=gpus))
        asked = {axis: draw.choice(VALUES[axis]) for axis in ("tp", "pp", "cp")}
        sequences, said = draw.choice((gpus, 7, 4 * gpus)), []
        while True:
            try:
                assert cut(job, sequences, zero=0, **asked).seconds > 0
                break
            except ValueError as error:
                said.append(str(error))
                assert said.count(said[-1]) == 1, said
                if found := re.search(r"sequences.*: use ([\d,]+), not", said[-1]):
                    sequences = int(found[1].replace(",", ""))
                elif "use at most" in said[-1]:
                    asked["pp"] = int(re.search(r"at most (\d+)", said[-1])[1])
                elif (changes := named(said[-1])).keys() == {"seq"}:
                    job = job.other(**changes)
                else:
                    asked |= {axis: changes.get(axis, degree) for axis, degree in asked.items()}


def paths(document, above=()):
    """Every place in a JSON document, and one in each object that it does not have."""
    for name, value in document.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from paths(value, (*above, name))
            yield (*above, name, "unknown")


def test_whatever_stands_in_a_jobs_file_is_a_job_or_refused_in_one_line():
    experts = Experts(8, 2, 64, dense=(0,))
    shape = replace(PRESETS["llama-3-8b"], variant=Variant(experts=experts, latent=Latent(8, 8, 8, 8), biases=("q",)))
    recipe = Recipe("bf16", adapter="lora", adapter_targets="q+v", adapter_dropout=0.05, optimizer="lion", paged=True)
    program = replace(PROGRAMS["huggingface"], fused=True)
    job = Job(shape, 128, DEVICES["t4"], cluster(1, 1, "pcie3"), 1, Layout(), recipe, program)
    assert Job.from_json(job.to_json()) == job
    hostile = (None, 0, -1, 1.5, "", "x", True, [], ["q"], {}, {"a": 1}, 10**400, math.nan, [[]], [1, -1])
    for path in paths(json.loads(job.to_json())):
        for value in hostile:
            document = part = json.loads(job.to_json())
            for name in path[:-1]:
                part = part[name]
            part[path[-1]] = value
            try:
                hash(Job.from_json(json.dumps(document)))
            except ValueError as error:
                assert "\n" not in str(error), path
    refused(lambda: Job.from_json('{"a":' * 10**5), "a job is a JSON object")
    refused(lambda: job.other(recipe=None), "recipe must be a Recipe, not None")
    refused(lambda: Shape(1, 2, 1, 3, variant={"a": 1}), "variant: got an unexpected keyword argument 'a'")
    refused(lambda: Variant(global_layers=3), "global_layers must be a list, not 3")
