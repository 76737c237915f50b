"""What no lab can do is refused before any work: one line, nothing printed before it, nothing written."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import repo

from scaleout.lab import fits, join, start
from scaleout.records import profiles
from scaleout.spec.transformer import Shape
from scaleout.train import batches

TRAIN = ("memory", "ddp", "fsdp", "tensor", "capstone", "slow_link")
SAVE = (
    "architecture",
    "bottlenecks",
    "budget",
    "memory",
    "ddp",
    "fsdp",
    "tensor",
    "mesh",
    "pipeline",
    "zero",
    "precision",
    "recompute",
    "collectives",
    "kernels",
    "capstone",
)
HUGE = "use fewer --layers or a smaller --hidden"
AT_ONE_PROCESS = [
    *((name, ["--layers", "1000000"], "--layers is 1000000" if name == "slow_link" else HUGE) for name in TRAIN[:5]),
    ("capstone", ["--layers", "1000000000"], HUGE),
    ("slow_link", ["--layers", "1000000"], HUGE),
    *((name, ["--lr", "nan"], "'nan' is not a finite number") for name in TRAIN[:5]),
    *((name, ["--seed", "1e30"], "--seed is 1000000000000000019884624838656: it must be from 0 to") for name in TRAIN),
    *((name, ["--hidden", "\u00b2"], "'\u00b2' is not a whole number") for name in TRAIN),
    *((name, ["--heads", "3"], "3 heads do not divide hidden size 128: change one of the two") for name in TRAIN[4:]),
    *((name, ["--dataset", "gone"], "dataset gone: no such file or folder") for name in TRAIN[:4]),
    *(
        (name, ["--steps", words], said)
        for name in TRAIN
        for words, said in (
            ("", "'' is not a whole number"),
            ("-5", "--steps is -5: it must be from"),
            ("1e99", "it must be from"),
        )
    ),
    *((name, ["--save", "."], "the name must end in .json") for name in SAVE),
    *((name, ["--save", "f.txt/r.json"], "cannot be written: choose a file in a folder") for name in SAVE),
    *((name, ["--save", "x" * 300 + ".json"], "cannot be written: choose a file in a folder") for name in SAVE),
    ("mesh", ["--layers", "1000000"], HUGE),
    ("mesh", ["--lr", "nan"], "'nan' is not a finite number"),
    ("mesh", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("mesh", ["--steps", "3"], "--steps is 3: it must be from 4"),
    ("mesh", ["--layout", "tp=2"], "dp 1 x cp 1 x tp 2 x pp 1 is 2 ranks, there are 1: the nearest that works"),
    ("mesh", ["--layout", "ep=2"], "'ep=2' is no part of a layout: give pp, dp, cp, tp, zero, m, v, schedule"),
    ("mesh", ["--layout", "tp=\u00b2"], "give a whole number, as in tp=2"),
    ("mesh", ["--layout", "m=3"], "m 3 does not fit 2 sequences a replica: use m 2"),
    ("mesh", ["--layout", "v=2"], "needs a pipeline"),
    ("mesh", ["--order", "pp,dp"], "--order pp,dp: name dp, tp and pp once each, the outermost first: pp,dp,tp"),
    ("mesh", ["--search"], "--search is about several ranks: use torchrun --nproc-per-node 8"),
    ("mesh", ["--fault", "tie"], "--fault is about several ranks: use torchrun --nproc-per-node 8"),
    ("mesh", ["--fault", "tie", "--save"], "--save: a run with a fault makes no Record: leave out --fault or --save"),
    ("mesh", ["--search", "--link"], "--link, --search and --fault are shown by themselves: leave out all but one"),
    ("mesh", ["--link", "fast"], "--link fast: give Mbit/s from 1 to 100000, such as 1000,200"),
    ("mesh", ["--link", "--layout", "tp=3"], "6 ranks, there are 8: the nearest that works is dp 2, cp 1, tp 4"),
    ("pipeline", ["--layers", "1000000"], HUGE),
    ("pipeline", ["--lr", "nan"], "'nan' is not a finite number"),
    ("pipeline", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("bottlenecks", ["--layers", "1000000"], HUGE),
    ("bottlenecks", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("bottlenecks", ["--heads", "3"], "3 heads do not divide hidden size 64: change one of the two"),
    ("bottlenecks", ["--steps", "1"], "--steps is 1: it must be from 2"),
    ("bottlenecks", ["--injected-ms", "5"], "--injected-ms is 5: it must be from 20"),
    ("bottlenecks", ["--sealed", "9"], "--sealed is 9: it must be from 1 to 8"),
    ("bottlenecks", ["--sealed", "3", "--verdict", "3=input"], "leave out one of them"),
    ("bottlenecks", ["--sealed", "3", "--save"], "--save keeps all eight runs: leave out --sealed and --verdict"),
    ("bottlenecks", ["--verdict", "3=input", "--save"], "--save keeps all eight runs"),
    ("bottlenecks", ["--verdict", "3=disk"], "a verdict is one of arithmetic, traffic, network, waiting, input, fixed"),
    ("bottlenecks", ["--verdict", "9=input"], "runs are numbered 1 to 8: write 3=input"),
    ("bottlenecks", ["--verdict", "input"], "runs are numbered 1 to 8: write 3=input"),
    ("architecture", ["--layers", "1000000"], HUGE),
    ("architecture", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("architecture", ["--heads", "3"], "3 heads do not divide hidden size 32: change one of the two"),
    ("architecture", ["--steps", "7"], "--steps is 7: it must be from 8"),
    ("architecture", ["--seq", "3"], "--seq is 3: it must be from 4"),
    ("architecture", ["--injected-ms", "5"], "--injected-ms is 5: it must be from 20"),
    ("architecture", ["--sealed", "11"], "--sealed is 11: it must be from 1 to 10"),
    ("architecture", ["--sealed", "3", "--verdict", "3=nan"], "--sealed and --verdict are shown by themselves"),
    ("architecture", ["--input", "--saves"], "--input and --saves are shown by themselves: leave out all but one"),
    ("architecture", ["--mixed", "--save"], "--save keeps all ten runs: leave out --mixed"),
    ("architecture", ["--trace", "t.json"], "--trace writes one run: add --sealed N or --mixed"),
    ("architecture", ["--rows", "r", "--saves"], "--rows writes one run: add --sealed N or --mixed"),
    ("architecture", ["--mixed", "--trace", "t.svg"], "the name must end in .json"),
    ("architecture", ["--mixed", "--rows", "f.txt"], "--rows f.txt: is a file, or cannot be written to"),
    ("architecture", ["--verdict", "3=disk"], "a verdict is one of slow-rank, slow-disk, slow-link, collections,"),
    ("architecture", ["--verdict", "11=nan"], "runs are numbered 1 to 10: write 3=slow-disk or 3=slow-disk:1"),
    ("architecture", ["--verdict", "3=nan:x"], "write the rank as a number, as in 3=nan:1"),
    ("architecture", ["--verdict", "3=nan:9"], "there is no rank 9 among 2, which are 0 to 1"),
    ("architecture", ["--score", "gone.txt"], "--score gone.txt: cannot be read (FileNotFoundError)"),
    ("architecture", ["--score", "f.txt"], "--score a file: runs are numbered 1 to 10"),
    ("architecture", ["--placement", "fast"], "--placement fast: give Mbit/s from 1 to 100000"),
    ("budget", ["--layers", "1000000"], HUGE),
    ("budget", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("budget", ["--heads", "3"], "3 heads do not divide hidden size 64: change one of the two"),
    ("budget", ["--prompt", "64"], "--prompt 64: a sequence of 64 bytes has to have some that are written"),
    ("budget", ["--written", "4"], "--written 4: a step takes 8 sequences: write as many, or use --batch"),
    ("budget", ["--seeds", "1"], "--seeds is 1: it must be from 2"),
    ("budget", ["--top-p", "1.5"], "--top-p is 1.5: it must be from 0.01 to 1"),
    ("budget", ["--temperature", "nan"], "'nan' is not a finite number"),
    ("recompute", ["--layers", "1000000"], HUGE),
    ("recompute", ["--lr", "nan"], "'nan' is not a finite number"),
    ("recompute", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("recompute", ["--heads", "3"], "3 heads do not divide hidden size 128: change one of the two"),
    ("recompute", ["--steps", "2"], "--steps is 2: it must be from 5"),
    ("recompute", ["--compile", "--save"], "--compile runs by itself: leave out --save and --fault"),
    ("recompute", ["--compile", "--dropout", "0.1"], "--compile measures a block without dropout: leave out --dropout"),
    ("recompute", ["--fault", "random"], "--fault random needs random numbers: add --dropout 0.1"),
    ("recompute", ["--fault", "router", "--save"], "a run with a fault makes no Record: leave out --fault or --save"),
    ("kernels", ["--seqs", "2"], "--seqs 2: give whole numbers from 4 to 1,048,576, as 128,256"),
    ("kernels", ["--seqs", "\u00b2"], "give whole numbers from 4"),
    ("kernels", ["--seqs", "128,"], "--seqs 128,: give whole numbers"),
    ("kernels", ["--head-sizes", "1024"], "--head-sizes 1024: give whole numbers from 8 to 512"),
    ("kernels", ["--fp8-widths", "24"], "FP8 matrix multiplications of size 24: use multiples of 16"),
    ("kernels", ["--fp8-seq", "200"], "--fp8-seq 200: blocks with a scale have 128 tokens: use a multiple of 128"),
    ("kernels", ["--fp8-head", "96"], "--fp8-head 96: the rotation needs a power of two"),
    ("kernels", ["--block-heads", "3"], "3 heads do not divide hidden size 128: change one of the two"),
    ("kernels", ["--ways", "fa9"], "--ways fa9: no such kernel: use all, or naive, checkpointed, tiled,"),
    ("kernels", ["--rounds", "1"], "--rounds is 1: it must be from 2"),
    ("kernels", ["--mask", "alibi"], "argument --mask: invalid choice: 'alibi'"),
    ("kernels", ["--fault", "mask", "--save"], "a run with a fault makes no Record: leave out --fault or --save"),
    ("pipeline", ["--schedules", "zb3"], "--schedules zb3: there is no 'zb3': use all, or some of gpipe,1f1b,"),
    ("pipeline", ["--steps", "2"], "--steps is 2: it must be from 3"),
    ("pipeline", ["--fault", "head"], "--fault: one process is no pipeline: use torchrun --nproc-per-node 2"),
    ("pipeline", ["--hop-ms", "5"], "--hop-ms: one process is no pipeline"),
    ("pipeline", ["--trace", "lanes.json"], "--trace: one process is no pipeline"),
    ("pipeline", ["--trace", "lanes.txt"], "the name must end in .json"),
    ("zero", ["--layers", "1000000"], HUGE),
    ("zero", ["--lr", "nan"], "'nan' is not a finite number"),
    ("zero", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("zero", ["--steps", "2"], "--steps is 2: it must be from 5"),
    ("zero", ["--fault", "clip"], "--fault is about several ranks: use torchrun --nproc-per-node 2"),
    ("zero", ["--fault", "clip", "--save"], "--save: a run with a fault makes no Record: leave out --fault or --save"),
    ("zero", ["--via", "accelerate"], "--via accelerate is about several processes: use torchrun --nproc-per-node 2"),
    ("zero", ["--optimizer", "muon", "--clip", "1"], "--optimizer muon runs by itself: leave out --clip and"),
    ("precision", ["--layers", "1000000"], HUGE),
    ("precision", ["--lr", "nan"], "'nan' is not a finite number"),
    ("precision", ["--dataset", "gone"], "dataset gone: no such file or folder"),
    ("precision", ["--steps", "7"], "--steps is 7: it must be from 8"),
    ("precision", ["--ways", "fp12"], "way 'fp12' is unknown: use one of fp32, bf16, fp16, fp16-scaled,"),
    ("precision", ["--via", "accelerate-fp16"], "Accelerate accepts mixed_precision fp16 on a CPU and"),
    ("precision", ["--fault", "bad-rank"], "--fault bad-rank is about several ranks: use torchrun --nproc-per-node 2"),
    ("precision", ["--fault", "overflow", "--save"], "--save: a run with a fault makes no Record"),
    ("ddp", ["--scaling", "1,2", "--save", "f.txt"], "--save f.txt: is a file, or cannot be written to"),
    ("calibrate", ["--out", "."], "cannot be written: choose a file"),
    ("calibrate", ["--out", "f.txt/m.json"], "cannot be written: choose a file"),
    ("slow_link", ["--dataset", "/nope"], "dataset /nope: no such file or folder"),
    ("slow_link", ["--save", "x" * 300], "or cannot be written to: choose another folder"),
    ("slow_link", ["--save", "f.txt"], "--save f.txt: is a file, or cannot be written to"),
    ("tensor", ["--link", "nan"], "--link nan: give Mbit/s from 1 to 100000"),
    ("tensor", ["--link", "200", "--save", "f.txt"], "--save f.txt: is a file, or cannot be written to"),
    ("tensor", ["--link", "200", "--precision", "autocast-bf16"], "--link is shown in fp32"),
    ("slow_link", ["--rates", "nan"], "--rates nan: give Mbit/s from 1 to 100000"),
    ("capstone", ["--resume", "\u00b2"], "--resume \u00b2: use auto, none, or the step of a checkpoint"),
    ("capstone", ["--checkpoint-every", "\u00b2", "--folder", "r"], "use auto, none, or a number of steps from 1"),
    ("capstone", ["--reshard", "\u00b2"], "--reshard \u00b2: use true, false, or a number of ranks"),
    ("capstone", ["--folder", "f.txt"], "--folder f.txt: is a file, or cannot be written to"),
    ("capstone", ["--folder", "f.txt/run"], "--folder f.txt/run: is a file, or cannot be written to: choose"),
]


CASES = [
    *((name, 1, words, said) for name, words, said in AT_ONE_PROCESS),
    ("ddp", 2, ["--inject", "straggler:5:0.2"], "there is no rank 5 among 2, which are 0 to 1"),
    ("ddp", 1, ["--scaling", "0,2"], "--scaling 0,2: give numbers of processes from 1 to 64, such as 1,2,4"),
    ("capstone", 2, ["--layout", "tp=2,pp=2,dp=3"], "is 12 ranks, there are 2: the nearest that works is dp 1, "),
    ("capstone", 2, ["--layout", "tp=2", "--offload"], "does not use --offload: use --no-offload"),
    ("mesh", 2, ["--layout", "tp=4,pp=2"], "dp 1 x cp 1 x tp 4 x pp 2 is 8 ranks, there are 2: the nearest"),
    ("precision", 1, ["--via", "mxfp8", "--hidden", "48"], "make --hidden, and --micro-batch times --seq, multiples"),
    ("precision", 1, ["--via", "nvfp4", "--seq", "8", "--micro-batch", "1"], "--via nvfp4: nvfp4 has blocks of "),
    ("collectives", 1, ["--smallest", "2"], "--smallest is 2: it must be from 4 to"),
    ("collectives", 1, ["--smallest", "4096", "--largest", "8000"], "are fewer than two sizes, and a line needs two"),
    ("collectives", 1, ["--factor", "1"], "--factor is 1: it must be from 2 to 1024"),
    ("collectives", 1, ["--rounds", "2"], "--rounds is 2: it must be from 3"),
    ("collectives", 1, ["--pieces", "0"], "--pieces is 0: it must be from 1"),
    ("collectives", 1, ["--pieces", "1.5"], "'1.5' is not a whole number"),
    ("collectives", 1, ["--via", "mpi"], "invalid choice: 'mpi'"),
    ("collectives", 1, ["--own", "25"], "--own is '25': give alpha in microseconds and rate in GB/s"),
    ("collectives", 1, ["--own", "25,0"], "--own is '25,0': give alpha"),
    ("collectives", 1, ["--own=-1,5"], "--own is '-1,5': give alpha"),
    ("collectives", 1, ["--own", "nan,5"], "--own is 'nan,5': give alpha"),
    (
        "collectives",
        1,
        ["--save"],
        "one process sends nothing: start with torchrun --nproc-per-node 2 labs/collectives.py",
    ),
    ("collectives", 1, ["--via", "accelerate"], "one process sends nothing: start with torchrun"),
    ("collectives", 1, ["--plot", "x.gif"], "the name must end in .svg or .png or .pdf"),
    ("ddp", 1, ["--hook", "fp8"], "invalid choice: 'fp8'"),
    ("ddp", 1, ["--steps", "3"], "--steps is 3: it must be from 4"),
    ("ddp", 1, ["--unused-part"], "add --find-unused"),
    ("ddp", 1, ["--inject", "starved:1"], "--inject needs ranks that wait for each other: torchrun --nproc-per-node 2"),
    ("ddp", 1, ["--inject", "straggler"], "--inject straggler: write it as straggler:RANK:SHARE"),
    ("ddp", 1, ["--inject", "fire"], "use one of straggler, tiny-buckets, slow-link, starved"),
    ("ddp", 1, ["--trace", "x.json"], "use torchrun --nproc-per-node 2"),
    ("ddp", 1, ["--trace", "x.txt"], "the name must end in .json"),
    ("ddp", 1, ["--scaling", "1,two"], "give numbers of processes from 1 to 64, such as 1,2,4"),
    ("ddp", 1, ["--scaling", "3,8"], "3 processes do not divide 32"),
    ("ddp", 1, ["--static-graph", "--accumulation", "2"], "add --sync-every-pass"),
    ("ddp", 1, ["--bucket-mb", "0"], "--bucket-mb is 0"),
    ("ddp", 1, ["--heads", "7"], "7 heads do not divide hidden size 160"),
    ("ddp", 1, ["--accumulation", "0"], "--accumulation is 0: it must be from 1 to 1000"),
    ("fsdp", 1, ["--wrap", "row"], "invalid choice: 'row'"),
    ("fsdp", 1, ["--steps", "4"], "--steps is 4: it must be from 5"),
    ("fsdp", 1, ["--reshard", "2"], "--reshard 2: with 1 rank(s) to a copy of the model use true, false"),
    ("fsdp", 1, ["--reshard", "maybe"], "--reshard maybe: with 1 rank(s)"),
    ("fsdp", 1, ["--replicas", "2"], "--replicas 2 does not divide 1 process(es): use 1"),
    ("fsdp", 1, ["--sweep", "wrap,colour"], "'colour' is no knob: use some of wrap, reshard"),
    ("fsdp", 1, ["--sweep", "wrap"], "use torchrun --nproc-per-node 2"),
    ("fsdp", 1, ["--trace", "x.json"], "use torchrun --nproc-per-node 2"),
    ("fsdp", 1, ["--trace", "x.txt"], "the name must end in .json"),
    ("fsdp", 1, ["--clip", "0"], "--clip is 0"),
    ("fsdp", 1, ["--prefetch", "-1"], "--prefetch is -1"),
    ("fsdp", 1, ["--heads", "7"], "7 heads do not divide hidden size 160"),
    ("fsdp", 1, ["--via", "accelerate"], "Accelerate takes its FSDP2 path on GPUs only"),
    ("fsdp", 1, ["--via", "accelerate-naive"], "Accelerate shards over several processes"),
    ("fsdp", 1, ["--replicas", "0"], "--replicas is 0: it must be from 1 to 100000"),
    ("memory", 1, ["--heads", "6"], "6 heads do not divide hidden size 160"),
    ("memory", 1, ["--fake", "900b"], "model '900b' is unknown: use one of gpt2, "),
    ("memory", 1, ["--optimizer", "lion"], "invalid choice: 'lion'"),
    ("memory", 1, ["--steps", "2"], "--steps is 2: it must be from 4"),
    ("memory", 1, ["--plot", "x.gif"], "the name must end in .svg or .png or .pdf"),
    ("memory", 1, ["--machine", "gone.json"], "no such file (python labs/calibrate.py makes one)"),
    ("memory", 1, ["--hidden", "-1"], "--hidden is -1: it must be from 1 to 10000000"),
    ("tensor", 3, [], "tp 3 does not divide 8 heads: the nearest that works is 2"),
    (
        "tensor",
        3,
        ["--hidden", "48", "--heads", "3"],
        "tp 3 does not divide a vocabulary of 256: use 2, or pad it to 258",
    ),
    (
        "tensor",
        2,
        ["--seq", "33", "--sequence-parallel"],
        "tp 2 does not divide 33 tokens, which sequence parallelism cuts",
    ),
    (
        "tensor",
        4,
        ["--form", "llama", "--kv-heads", "2", "--via", "torch"],
        "ColwiseParallel would cut 2 key-value heads into 4 parts: use 2 processes or",
    ),
    (
        "tensor",
        2,
        ["--via", "accelerate"],
        "Accelerate cuts no matrix itself: it takes a model that transformers has cut",
    ),
    (
        "tensor",
        2,
        ["--fault", "kv-copies"],
        "--fault kv-copies needs more processes than key-value heads, and here are 2 for 8",
    ),
    ("tensor", 1, ["--fault", "no-backward-reduce"], "--fault is about several ranks: use torchrun --nproc-per-node 2"),
    ("tensor", 2, ["--link", "200"], "--link starts its own processes: start it with python, not with torchrun"),
    ("mesh", 2, ["--link"], "--link starts its own processes: start it with python, not with torchrun"),
    ("mesh", 8, ["--fault", "norms"], "without sequence parallelism every rank has a norm's whole gradient"),
    ("mesh", 2, ["--fault", "tie"], "--fault tie is about several ranks along pp"),
    ("mesh", 8, ["--fault", "tie", "--form", "llama"], "--fault tie needs a tied head: use --form gpt"),
    ("mesh", 8, ["--fault", "replicas", "--layout", "zero=1"], "--fault is shown without ZeRO"),
    (
        "mesh",
        8,
        ["--fault", "tensor", "--sequence-parallel"],
        "whose tokens would not fit: leave out --sequence-parallel",
    ),
    (
        "mesh",
        8,
        ["--layout", "zero=3"],
        "with a pipeline, ZeRO stage 3 would communicate in every micro-batch: use zero 0 or 1",
    ),
    ("mesh", 8, ["--layout", "zero=2"], "ZeRO stage 2 would communicate in every micro-batch"),
    (
        "mesh",
        8,
        ["--sequence-parallel", "--seq", "33"],
        "tp 2 does not divide 33 tokens, which sequence parallelism cuts",
    ),
    ("mesh", 8, ["--layout", "cp=2"], "this mesh has no context parallelism: use cp 1, not 2"),
    (
        "mesh",
        8,
        ["--layout", "pp=2,schedule=zb1"],
        "splits the backward in two, which tensor-parallel layers here do not: use 1f1b",
    ),
    ("mesh", 8, ["--layout", "pp=8", "--layers", "2"], "2 layers are fewer than 8 stages"),
    ("mesh", 8, ["--via", "torch", "--order", "tp,pp,dp"], "its mesh is made in the order pp,dp,tp, not tp,pp,dp"),
    (
        "mesh",
        8,
        ["--search", "--machine", "any"],
        "--machine predicts the steps of one layout: leave out --link, --search",
    ),
    ("mesh", 8, ["--machine", "gone.json"], "machine profile gone.json: "),
    (
        "mesh",
        8,
        ["--via", "accelerate"],
        "--via accelerate: its ParallelismConfig has no pipeline, asks for transformers",
    ),
    ("pipeline", 2, ["--layers", "7"], "--layers 7 cannot be cut into 4 equal stages: use --layers 8"),
    (
        "pipeline",
        2,
        ["--micro-batches", "1"],
        "1f1b needs a micro-batch for each of 2 ranks, not 1: use --micro-batches 2",
    ),
    (
        "zero",
        2,
        ["--fault", "clip", "--via", "ddp"],
        "--fault clip is shown by hand: use --via stage-1, stage-2, stage-3",
    ),
    (
        "zero",
        2,
        ["--machine", "gone.json"],
        "machine profile gone.json: no such file (python labs/calibrate.py makes one)",
    ),
    (
        "zero",
        2,
        ["--optimizer", "muon", "--via", "keep"],
        "--optimizer muon with --via keep: use one of stage-1, stage-2,",
    ),
    ("kernels", 2, ["--heads", "3"], "--heads 3: 2 processes do not divide them: use a multiple of 2"),
    ("slow_link", 1, ["--rates", "fast"], "--rates fast: give Mbit/s from 1 to 100000, such as 1000,200"),
    ("slow_link", 1, ["--rates", "0.1"], "--rates 0.1: give Mbit/s from 1 to 100000"),
    ("slow_link", 1, ["--hosts", "5"], "--hosts is 5: it must be from 2 to 4"),
    ("slow_link", 1, ["--heads", "3"], "3 heads do not divide hidden size 128"),
    ("budget", 2, ["--batch", "7"], "--batch 7: does not divide among 2 processes"),
]


@pytest.mark.parametrize(("name", "world", "words", "said"), CASES, ids=lambda value: str(value)[:30])
def test_what_cannot_be_is_refused_before_any_work(name, world, words, said, refusal):
    assert said in refusal(name, words, world)


# --- where this process stands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "abc"}, "RANK is 'abc' in the environment, where a whole number from 0 to 0 belongs"),
        ({"RANK": "\u00b2"}, "RANK is '\u00b2' in the environment"),
        ({"RANK": ""}, "RANK is ''"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0' in the environment, where a whole number from 1 to 1000000 belongs"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE is '9999"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is '2'"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK is '1' in the environment, where a whole number from 0 to 0 belongs"),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, "LOCAL_WORLD_SIZE is '4'"),
    ],
)
def test_a_launchers_number_that_cannot_be_is_named(variables, said, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(join.Misplaced, match=re.escape(said)):
        join.place()


@pytest.mark.parametrize("text", ["abc", "", "nan", "inf", "0", "-1", "1e9"])
def test_a_time_out_that_is_none_is_named(text, monkeypatch):
    monkeypatch.setenv("LAB_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"^LAB_TIMEOUT is '{text}' in the environment: give seconds above 0, 86,400"):
        join.check_timeout()


def test_a_home_that_one_may_not_enter_holds_no_profile(monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(profiles.Path, "exists", refuse)
    assert profiles.find(None, "cpu", 1) is None


def test_a_model_that_this_machine_cannot_hold_is_told_by_how_much():
    shape = Shape(2, 64, 4, 256, max_seq=32)
    fits.refuse(shape, 10**9, "this machine")
    with pytest.raises(
        ValueError,
        match=r"^the weights alone take \d\.\d GB, and this machine has 0\.0 GB: use fewer "
        "--layers or a smaller --hidden$",
    ):
        fits.refuse(shape, 1000, "this machine")


# --- the text -----------------------------------------------------------------------------------------------------


def test_a_file_is_on_one_side_of_the_split_only(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"text {i % 8} " * 50)
    (tmp_path / "empty.txt").write_text("")
    text = batches.read(str(tmp_path), 0.4)
    whole = bytes(text.train.tolist()) + bytes(text.validation.tolist())
    assert all(whole.count(b"text %d " % i) == 50 for i in range(8))
    assert (text.files, text.copies) == (9, 32)
    assert "in 9 file(s) (32 left out, with the same bytes as another), " in text.words
    with pytest.raises(
        ValueError,
        match=r"^--held-out 0.99 leaves \d+ bytes to train on, and one step takes 1,000: "
        "hold out less, or use a larger --dataset$",
    ):
        batches.read(str(tmp_path), 0.99, 1000)


# --- the screen ---------------------------------------------------------------------------------------------------

SAY = (
    "import sys; from scaleout.lab import start; start.begin()\n"
    "for _ in range(2000): print('3 \u00d7 4 \u00b5s \u2192 \u20ac', flush=True)\n"
    "print('done', file=sys.stderr)"
)


def say(**more):
    return subprocess.Popen(
        [sys.executable, "-c", SAY],
        cwd=repo.ROOT,
        env=os.environ | {"PYTHONPATH": "."} | more,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("latin-1", "3 \u00d7 4 \u00b5s ? ?".encode("latin-1")),
        ("ascii", b"3 ? 4 ?s ? ?"),
        ("utf-8", "3 \u00d7 4 \u00b5s \u2192 \u20ac".encode()),
    ],
)
def test_every_text_can_be_printed_in_every_encoding(encoding, line):
    out, errors = say(PYTHONIOENCODING=encoding).communicate(timeout=60)
    assert out == 2000 * (line + b"\n")
    assert errors == b"done\n"


def test_a_reader_that_goes_away_ends_no_run():
    process = say()
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"done\n"
    assert process.wait(60) == 0
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_the_output_is_said_once():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", SAY],
            cwd=repo.ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": "."},
        )
    assert done.returncode == 0
    assert done.stderr == "./-c: what it prints is lost (no space left on device); the run goes on\ndone\n"


@pytest.mark.parametrize("name", ["capstone", "preflight"])
def test_ctrl_c_while_torch_is_imported_is_one_line(name):
    process = subprocess.Popen(
        [sys.executable, "-v", f"labs/{name}.py"],
        cwd=repo.ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": "."},
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    line = next(line for line in process.stderr if re.match("import 'torch.types'|# .*torch/types", line))
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    assert line
    assert f"labs/{name}.py: stopped\n" in rest
    assert "Traceback" not in rest
    process.stderr.close()


def test_every_lab_is_ready_for_ctrl_c_before_it_imports_anything():
    labs = [file for file in (repo.ROOT / "labs").glob("*.py") if file.name != "hang_job.py"]  # hang.py starts that
    assert len(labs) > 9
    for file in labs:
        first = next(one for one in ast.parse(file.read_text()).body if isinstance(one, ast.Import | ast.ImportFrom))
        assert ast.unparse(first) == "import scaleout.lab.start", file.name


def test_a_notebook_that_opens_a_session_keeps_its_figures(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    start.begin()
    assert os.environ["MPLBACKEND"] == "module://matplotlib_inline.backend_inline"
