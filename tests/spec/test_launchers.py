"""Command lines of a layout: options that the frameworks' own parsers know, degrees and batches that come back."""

import json
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
from cases import each, over, refused

from scaleout.memory.activations import Sizes
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.launchers import book, megatron, torchtitan
from scaleout.spec.layout import Layout
from scaleout.spec.mesh import blocks
from scaleout.spec.program import PROGRAMS as RUN_BY
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.train.options import Options

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "launchers.json").read_text())
MAKERS = {"megatron": megatron, "torchtitan": torchtitan}
TITAN = "--parallelism."
PROGRAMS = ("labs/capstone.py", "pretrain_gpt.py", "-m torchtitan.train")


def job(layout, batch=1, seq=4096, layers=32, recompute="none", node=8, program="megatron", loss="eager", **more):
    """A job of this layout on whole nodes."""
    node = min(node, layout.ranks)
    recipe = Recipe("bf16-master", main_gradients="instead", checkpointing=recompute, loss=loss)
    shape = replace(PRESETS["llama-2-7b"], layers=layers)
    program = RUN_BY[program] if isinstance(program, str) else program
    nodes = cluster(layout.ranks // node, node)
    return Job(shape, seq, DEVICES["h100-sxm"], nodes, batch, layout, recipe, program, **more)


def read(lines):
    """(processes, {option: value, or True}) of a command; what stands before the program is torchrun's."""
    start = dict(re.findall(r"--(nnodes|nproc-per-node) (\d+)", lines[0]))
    place = next(i for i, line in enumerate(lines) if line in PROGRAMS)
    words = [shlex.split(line) for line in lines[place + 1 :]]
    assert all(len(pair) <= 2 for pair in words) and len({pair[0] for pair in words}) == len(words)
    return int(start.get("nnodes", 1)) * int(start["nproc-per-node"]), {a: (b or [True])[0] for a, *b in words}


def layouts(**more):
    """Layouts of few ranks that both frameworks can be asked for."""
    for tp, pp, chunks, zero in ((1, 1, 1, 0), (2, 1, 1, 3), (2, 2, 1, 1), (4, 2, 2, 0), (1, 4, 2, 1), (2, 4, 1, 1)):
        schedule = "interleaved" if chunks > 1 else "1f1b"
        yield Layout(dp=2, tp=tp, pp=pp, chunks=chunks, schedule=schedule, zero=zero, micro_batches=8, **more)


@over(name=list(MAKERS), recompute=["none", "full"], layers=[32, 30, 14])
def test_every_option_is_one_that_the_framework_has(name, recompute, layers):
    known = PUBLISHED[name]["options"]
    contexts = {"gather_again": False} if name == "torchtitan" else {}
    for layout in [*layouts(sequence_parallel=True, **contexts), *layouts(cp=2, **contexts), *layouts()]:
        try:
            _, options = read(MAKERS[name](job(layout, 1, 4096, layers, recompute, context="gather")))
        except ValueError as error:
            assert "splits weights" in str(error) or "shares" in str(error)
            continue
        for option, value in options.items():
            kind = known[option]
            assert value is True if kind == "flag" else kind in ("int", "text") or value in kind, option
            assert kind != "int" or str(int(value)) == value, option


@each([(name, example) for name in MAKERS for example in PUBLISHED[name]["examples"]])
def test_a_published_command_comes_out_as_it_was_written(name, example):
    layout = Layout(**example["layout"], gather_again=name == "megatron")
    lines = MAKERS[name](job(layout, example["batch"], example["seq"], example["layers"], context="gather"))
    assert set(example["options"]) <= set(lines), set(example["options"]) - set(lines)


@over(batch=[1, 3], layers=[32, 30])
def test_megatron_gets_back_the_ranks_the_batch_and_the_stages(batch, layers):
    for layout in layouts(sequence_parallel=True):
        ranks, said = read(megatron(job(layout, batch, 4096, layers)))
        tp, pp, cp = (
            int(said[f"--{axis}-size"])
            for axis in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
        )
        assert ranks == layout.ranks and ranks // (tp * pp * cp) == layout.dp
        assert int(said["--global-batch-size"]) == layout.dp * layout.m * int(said["--micro-batch-size"])
        assert int(said["--micro-batch-size"]) == batch and said["--seq-length"] == "4096"
        assert ("--sequence-parallel" in said) == (tp > 1)
        assert ("--use-distributed-optimizer" in said) == (layout.zero > 0)
        assert megatron_stages(said, layers, pp) == blocks(layers, layout.stages)


def megatron_stages(said, layers, pp):
    """Blocks of each stage, as its `PipelineParallelLayerLayout` and `get_num_layers_to_build` read the options."""
    custom = said.get("--pipeline-model-parallel-layout")
    if custom:
        rows = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), custom).split("|")
        assert custom[0] == "E" and custom[-1] == "L"
        return tuple(row.count("t") for row in rows)
    ends = [f"--account-for-{end}-in-pipeline-split" in said for end in ("embedding", "loss")]
    chunks = int(said.get("--num-virtual-stages-per-pipeline-rank", 0))
    assert chunks != 1, "with any number Megatron-LM takes the interleaved schedule"
    stages = pp * max(1, chunks)
    each, left = divmod(layers + sum(ends), stages)
    assert not left
    return tuple(each - (ends[0] and i == 0) - (ends[1] and i == stages - 1) for i in range(stages))


@over(batch=[1, 3], layers=[32, 30])
def test_torchtitan_gets_back_the_ranks_the_batch_and_the_stages(batch, layers):
    for layout in layouts(sequence_parallel=True, gather_again=False):
        if layers == 30 and layout.stages == 4:
            continue  # neither 30 nor 32 less the ends: its own split
        ranks, said = read(torchtitan(job(layout, batch, 4096, layers)))
        names = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel")
        replicate, shard, tp, cp = (int(said[f"{TITAN}{name}_degree"]) for name in names)
        pp = int(said.get(f"{TITAN}pipeline_parallel_degree", 1))
        assert replicate * shard * tp * cp * pp == ranks == layout.ranks
        assert (replicate, shard) == ((1, layout.dp) if layout.zero else (layout.dp, 1))
        local, whole = (int(said[f"--training.{name}_batch_size"]) for name in ("local", "global"))
        assert whole == layout.dp * batch * layout.m
        if pp > 1:
            assert int(said[f"{TITAN}pipeline_parallel_microbatch_size"]) * layout.m == local
            more = sum(int(said[f"{TITAN}pipeline_parallel_{end}_stage_less_layers"]) for end in ("first", "last"))
            most = int(said[f"{TITAN}pipeline_parallel_layers_per_stage"])
            assert -(-(layers + more) // most) == layout.stages and most == max(blocks(layers, layout.stages))
        else:
            assert local == batch
        assert said["--training.seq_len"] == "4096"


def test_torchtitan_s_recomputation_is_a_subcommand_and_so_comes_last():
    assert torchtitan(job(Layout(dp=2), recompute="full"))[-1] == "activation-checkpoint:full"


@each([(2, 3, "always"), (2, 2, "never"), (2, 0, None)])
def test_weights_are_kept_or_not_after_the_forward_by_the_stage_of_zero(dp, zero, reshard):
    _, said = read(torchtitan(job(Layout(dp=dp, zero=zero))))
    assert said.get(f"{TITAN}fsdp_reshard_after_forward") == reshard
    _, said = read(megatron(job(Layout(dp=dp, zero=zero))))
    strategy = {3: "optim_grads_params", 2: "optim_grads", 0: None}[zero]
    assert said.get("--data-parallel-sharding-strategy") == strategy


@each(
    [
        (megatron, {"dp": 2}, "selective", ["--recompute-granularity selective", "--recompute-modules core_attn"]),
        (
            megatron,
            {"dp": 2},
            "full",
            ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"],
        ),
        (megatron, {"dp": 2, "zero": 2}, "none", ["--use-megatron-fsdp", "--ckpt-format fsdp_dtensor"]),
        (megatron, {"cp": 2}, "none", ["--overlap-grad-reduce", "--cp-comm-type all_gather"]),
        (torchtitan, {"tp": 2}, "none", ["--parallelism.no-enable_sequence_parallel"]),
        (
            torchtitan,
            {"cp": 2, "zero": 3, "gather_again": False},
            "none",
            ["--parallelism.context_parallel_load_balancer ptrr"],
        ),
        (torchtitan, {"pp": 2}, "none", ["--training.disable_cuda_graphs"]),
    ]
)
def test_what_a_layout_needs_is_asked_for_and_of_one_rank_nothing_of_it(maker, layout, recompute, lines):
    assert set(lines) <= set(maker(job(Layout(**layout), recompute=recompute, context="gather")))
    assert not set(lines) & set(maker(job(Layout())))


def test_a_ring_is_megatron_s_default_and_torchtitan_has_none():
    ring = job(Layout(dp=2, cp=2, zero=3, gather_again=False))
    assert not [line for line in megatron(ring) if line.startswith("--cp-comm-type")]
    for way in ({"context": "ring"}, {"context": "gather", "gather_again": True}):
        refused(lambda way=way: torchtitan(ring.other(**way)), "use context gather and gather_again False")
    assert torchtitan(ring.other(context="gather"))
    refused(lambda: megatron(ring.other(context="gather")), "again in the backward: use gather_again")


def test_stages_that_no_rule_gives_are_written_out_for_megatron():
    layout = Layout(pp=3, chunks=2, schedule="interleaved", micro_batches=3)
    assert "--pipeline-model-parallel-layout 'Et*4|t*6|t*6|t*6|t*6|t*4L'" in megatron(job(layout))


def test_rounds_of_an_interleaved_pipeline_are_named_where_they_are_longer_than_it():
    layout = Layout(pp=4, chunks=2, schedule="interleaved", micro_batches=6)
    assert "--microbatch-group-size-per-virtual-pipeline-stage 6" in megatron(job(layout))
    layout = Layout(pp=4, chunks=2, schedule="interleaved", micro_batches=8)
    assert not any("group-size" in line for line in megatron(job(layout)))


NEAR = Layout(dp=2, tp=8, zero=1, sequence_parallel=True)


@each(
    [
        (
            megatron,
            NEAR,
            {},
            {"--tp-comm-overlap", "--attention-backend fused", "--overlap-grad-reduce", "--overlap-param-gather"},
            set(),
        ),
        (megatron, NEAR, {"node": 4}, {"--attention-backend fused"}, {"--tp-comm-overlap"}),
        (megatron, Layout(dp=2, tp=2), {}, {"--attention-backend fused"}, {"--tp-comm-overlap"}),
        (
            megatron,
            NEAR,
            {"program": "megatron-2021"},
            {"--attention-backend flash"},
            {"--tp-comm-overlap", "--overlap-param-gather"},
        ),
        (
            megatron,
            NEAR,
            {"program": replace(RUN_BY["megatron"], data_overlap=False)},
            set(),
            {"--overlap-grad-reduce", "--overlap-param-gather"},
        ),
        (
            torchtitan,
            Layout(dp=2, tp=2, zero=3, sequence_parallel=True, gather_again=False),
            {"program": "compiled"},
            {"--compile.enable", "--compile.components model"},
            {"--compile.enable_async_tensor_parallel"},
        ),
        (torchtitan, Layout(dp=2, zero=3), {"program": "eager"}, set(), {"--compile.enable"}),
        (
            torchtitan,
            Layout(dp=2, tp=2, zero=3, sequence_parallel=True, gather_again=False),
            {"program": replace(RUN_BY["compiled"], tensor_overlap="chunked")},
            {"--compile.enable", "--compile.enable_async_tensor_parallel"},
            set(),
        ),
    ]
)
def test_what_is_printed_runs_what_was_priced(maker, layout, more, asked, left_out):
    """Chunked overlap inside a node and with sequence parallelism only, as `timing.compute.overlap` prices it."""
    lines = set(maker(job(layout, **more)))
    assert asked <= lines and not left_out & lines


@each(
    [
        (Layout(tp=2, pp=2), "1", 1),
        (Layout(dp=2, cp=2, zero=1), "1", 1),
        (Layout(dp=2, zero=1), None, 1),
        (Layout(dp=2, tp=2, zero=3), None, 1),
        (Layout(dp=4, tp=4), "1", 2),
    ]
)
def test_megatron_s_first_line_sets_connections_where_it_asks_for_one(layout, connections, nodes):
    start, *more = megatron(job(layout))
    assert start.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 " if connections else "torchrun ")
    assert (f"--nnodes {nodes} " in start and "$HEAD" in more[0]) == (nodes > 1)
    assert ("--standalone" in start) == (nodes == 1) and more[nodes > 1] == "pretrain_gpt.py"


def test_megatron_has_one_other_order_of_ranks():
    layout = Layout(dp=2, tp=2, pp=2)
    usual, other = (
        set(megatron(job(layout, order=order))) for order in (("pp", "dp", "cp", "tp"), ("dp", "pp", "cp", "tp"))
    )
    assert other - usual == {"--use-tp-pp-dp-mapping"} and usual < other


@each(
    [
        ({"dp": 2, "tp": 2, "pp": 2, "sequence_parallel": True}, "pp=2,tp=2,zero=0,v=1,schedule=1f1b"),
        ({"dp": 4, "pp": 2, "zero": 1, "chunks": 2, "schedule": "zbv"}, "pp=2,tp=1,zero=2,v=2,schedule=zbv"),
        ({"dp": 8, "zero": 3}, "pp=1,tp=1,zero=3"),
    ]
)
def test_the_book_s_job_knows_its_options_and_gets_back_the_batch(layout, words):
    ranks, said = read(book(job(Layout(**layout, micro_batches=4), 3, 256, 8, "selective")))
    own = {f"--{field.name.replace('_', '-')}" for field in fields(Options)}
    assert set(said) - {"--layout"} <= own and said["--layout"] == words and ranks == 8
    assert int(said["--batch"]) == layout["dp"] * 4 * int(said["--micro-batch"]) == layout["dp"] * 4 * 3
    assert said["--checkpointing"] == "selective" and said["--seq"] == "256"


@each(
    [
        (megatron, {"dp": 2, "pp": 2, "zero": 3}, {}, "no ZeRO 3 with a pipeline: use zero 1"),
        (megatron, {"dp": 2, "pp": 2, "zero": 2}, {}, "no ZeRO 2 with a pipeline: use zero 1"),
        (megatron, {"pp": 2, "chunks": 2, "schedule": "zbv"}, {}, "no zero-bubble ZBV: use schedule 1f1b"),
        (megatron, {"tp": 2, "sequence_parallel": True, "gather_again": False}, {}, "use gather_again"),
        (megatron, {"dp": 2}, {"order": ("tp", "cp", "dp", "pp")}, "cannot order ranks as tp, cp, dp, pp"),
        (megatron, {"dp": 2, "zero": 3}, {"order": ("dp", "pp", "cp", "tp")}, "cannot order ranks as dp, pp, cp, tp"),
        (torchtitan, {"tp": 2, "sequence_parallel": True}, {}, "use gather_again False"),
        (torchtitan, {"dp": 2, "zero": 1}, {}, "no ZeRO 1 here: use zero 2 or 3"),
        (torchtitan, {"dp": 2, "pp": 2, "zero": 3}, {}, "no ZeRO 3 here: use zero 1"),
        (
            torchtitan,
            {"dp": 2, "cp": 2, "gather_again": False},
            {"context": "gather"},
            "splits weights over context parallelism: use zero 2 or 3",
        ),
        (torchtitan, {"pp": 2, "schedule": "zb1"}, {}, "at least 2 stages of zero-bubble ZB1: use chunks 2"),
        (torchtitan, {"pp": 3}, {}, "use as many stages as divide 32 or 34"),
        (torchtitan, {"dp": 2}, {"recompute": "selective"}, "use none or full"),
        (torchtitan, {"dp": 2}, {"order": ("dp", "pp", "cp", "tp")}, "no other way"),
        (book, {"cp": 2}, {}, "use cp 1"),
        (book, {"tp": 2}, {}, "use sequence_parallel"),
        (book, {"pp": 2, "tp": 2, "schedule": "zb1", "sequence_parallel": True}, {}, "with tp 1 and zero 0 or 2 only"),
        (book, {"pp": 2, "dp": 2, "zero": 3, "schedule": "zb1"}, {}, "use schedule 1f1b"),
        (book, {"dp": 2}, {"order": ("dp", "pp", "cp", "tp")}, "no other way"),
    ]
)
def test_what_a_framework_cannot_do_is_one_line(maker, layout, more, words):
    refused(lambda: maker(job(Layout(**layout), **more)), words)


@pytest.mark.parametrize("maker", (book, megatron, torchtitan))
def test_what_is_no_job_is_refused(maker):
    refused(lambda: maker("dp=2"), "job must be a Job")


# --- the loss -------------------------------------------------------------------------------------------------------


@each(
    [
        (megatron, "fused", "megatron", "its own keeps fp32 probabilities: use loss eager"),
        (megatron, "chunked", "megatron", "Megatron-LM has no loss in chunks: use loss eager"),
        (book, "fused", "eager", "torch's own cross-entropy alone: use loss eager"),
        (book, "chunked", "eager", "use loss eager"),
    ]
)
def test_a_loss_that_a_framework_does_not_make_is_refused(maker, loss, program, words):
    assert maker(job(Layout(dp=2), program=program))
    refused(lambda: maker(job(Layout(dp=2), program=program, loss=loss)), words)


@each(
    [
        ("compiled", "eager", {"--loss.num_chunks 1", "--compile.enable", "--compile.components model"}),
        ("compiled", "fused", {"--loss.num_chunks 1", "--compile.enable"}),
        ("compiled", "chunked", {"--loss.num_chunks 64", "--compile.enable"}),
        ("eager", "eager", {"--loss.num_chunks 1"}),
        ("eager", "fused", {"--loss.num_chunks 1", "--compile.enable", "--compile.components loss"}),
        ("eager", "chunked", {"--loss.num_chunks 64"}),
    ]
)
def test_torchtitan_makes_each_loss_by_chunks_and_by_what_is_compiled(program, loss, asked):
    """64 chunks of 128 tokens: Llama 3's vocabulary is 32 times its hidden size, and 8,192 / 32 / 2 = 128."""
    llama = job(Layout(dp=2, zero=3), seq=8192, program=program, loss=loss).other(shape="llama-3-8b")
    lines = set(torchtitan(llama))
    assert {line for line in lines if line.startswith(("--loss", "--compile"))} == asked
    assert {option.split()[0] for option in asked} <= set(PUBLISHED["torchtitan"]["options"])


@over(cp=[1, 2], batch=[1, 2, 4], seq=[4096, 3072])
def test_torchtitan_s_chunks_are_equal_and_no_larger_than_those_that_were_priced(cp, batch, seq):
    layout = Layout(dp=2, cp=cp, zero=3, gather_again=False)
    asked = job(layout, batch, seq, program="compiled", loss="chunked", context="gather")
    chunks = int(read(torchtitan(asked))[1]["--loss.num_chunks"])
    priced = Sizes(asked.shape, batch, asked.seq // cp, asked.recipe, Layout()).loss_chunk
    assert asked.seq // cp % chunks == 0 and asked.tokens <= chunks * priced
    fewer = [n for n in range(1, chunks) if asked.seq // cp % n == 0]
    assert all(asked.tokens > n * priced for n in fewer), "no fewer than are needed"
