"""A model's config.json on GPUs, from the command line: what fits, the step time, the price, and what to try first.

    python -m scaleout.fit config.json --gpus 8 --device h100-sxm
    python -m scaleout.fit llama-3-70b --gpus 64 --device h100-sxm --seq 8192 --batch 512 --tokens 1e12 --price 2.1
    python -m scaleout.fit config.json --gpus 8 --device a100-80gb --program hf --layout zero=3 --recompute full --json
    python -m scaleout.fit qwen3-8b --device rtx-4090 --qlora 16 --seq 2048
    python -m scaleout.fit llama-3.1-8b --gpus 8 --device l40s --full --optimizer adamw-8bit --layout fsdp

The model is a config.json of the Hugging Face Hub, the folder of one, or the name of a model that the book knows.
Without --layout the best of all layouts is shown. --full, --lora and --qlora ask for fine-tuning on one GPU or one
node. Nothing is downloaded. Standard library only.
"""

from __future__ import annotations

import difflib
import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from scaleout.fit import answer, text, tuning
from scaleout.spec import checks, config, models
from scaleout.spec.command import Parser
from scaleout.spec.devices import DEVICES
from scaleout.spec.transformer import PRESETS, Shape, check_positions
from scaleout.timing.price import EXAMPLE
from scaleout.timing.quick import RECOMPUTE
from scaleout.views.choices import NODE
from scaleout.views.finetune import setting as finetune
from scaleout.views.planner.setting import MOST_GPUS, NETWORKS, RUNS, Question

PROGRAMS = {"hf": "huggingface", "torchtitan": "compiled"} | {name: name for name in RUNS}
LONGEST = 8192  # tokens of a sequence, where nobody says how many
TUNED = 2048  # the same of fine-tuning
PER_GPU = 8  # sequences of a step per GPU, where nobody says how many
TUNERS = {"hf": "huggingface", "torchtune": "eager"} | {name: name for name in finetune.RUNS}
RANK = 16  # of adapters, where nobody says which
V = TypeVar("V")


def parser() -> Parser:
    options = Parser(__doc__ or "", prog="python -m scaleout.fit")
    options.add_argument("model", help=f"a config.json, its folder, or one of {', '.join((*PRESETS, *models.MODELS))}")
    options.add_argument("--gpus", type=int, help=f"in whole nodes of {NODE} above {NODE} (fine-tuning: 1)")
    options.add_argument("--device", required=True, help=", ".join(DEVICES))
    options.add_argument("--program", help=f"{', '.join(PROGRAMS)} (megatron); fine-tuning: {', '.join(TUNERS)} (hf)")
    options.add_argument("--seq", type=int, help=f"tokens of a sequence (up to {LONGEST:,}; fine-tuning: {TUNED:,})")
    options.add_argument("--batch", type=int, help=f"sequences of a step, of all GPUs together ({PER_GPU} per GPU)")
    layouts = ", ".join(finetune.LAYOUTS)
    options.add_argument("--layout", help=f"such as tp=2,pp=2,zero=1; fine-tuning: {layouts} (the best)")
    options.add_argument(
        "--recompute", "--checkpointing", help=f"with --layout: {', '.join(RECOMPUTE)} (the fastest that fits)"
    )
    options.add_argument("--loss", help="eager, fused or chunked (eager; with Liger chunked)")
    options.add_argument("--network", help=f"between nodes: {', '.join(NETWORKS)} (ndr)")
    options.add_argument("--tokens", type=float, default=1e9, help="of the whole run (1e9)")
    options.add_argument("--price", type=float, default=EXAMPLE.gpu_hour, help="of one GPU for one hour (an example)")
    options.add_argument("--currency", default=EXAMPLE.currency)
    options.add_argument("--json", action="store_true", help="the same as JSON")
    group = options.add_argument_group("fine-tuning on one GPU or one node")
    method = group.add_mutually_exclusive_group()
    method.add_argument("--full", action="store_true", help="every weight is trained")
    for name, words in (("lora", "adapters of this rank"), ("qlora", "the same over a base in 4 bits")):
        method.add_argument(f"--{name}", nargs="?", type=int, const=RANK, metavar="RANK", help=f"{words} ({RANK})")
    group.add_argument("--optimizer", help=f"{', '.join(finetune.OPTIMIZERS)} (adamw)")
    group.add_argument("--micro-batch", type=int, help="sequences on a GPU at once (the fastest that fits)")
    group.add_argument("--targets", help=f"of adapters: {', '.join(finetune.TARGETS)}, or names joined by + (all)")
    group.add_argument("--prepared", action="store_true", help="QLoRA after PEFT's prepare_model_for_kbit_training")
    group.add_argument("--precision", help=f"of full fine-tuning: {', '.join(finetune.PRECISIONS)} (bf16)")
    return options


def named(word: str, key: object, table: Mapping[str, V]) -> V:
    """The entry of a table. ValueError that lists the keys, and says which are nearest."""
    try:
        return checks.known(word, key, table)
    except ValueError as error:
        near = nearest(str(key), table)
        raise ValueError(f"{error}{f'; nearest: {near}' if near else ''}") from None


def nearest(key: str, names: Mapping[str, Any]) -> str:
    """The names that are most like a word, or that it is a part of."""
    low = key.lower()
    parts = [name for name in names if low and (low in name or name in low)]
    return ", ".join(list(dict.fromkeys([*parts, *difflib.get_close_matches(low, names, 3, 0.6)]))[:3])


def model(o: Namespace) -> tuple[str, Shape, tuple[str, ...]]:
    """The model's name or its config.json as text, its shape, and the fields of the config.json that are not read."""
    known: dict[str, Any] = {**PRESETS, **models.MODELS}
    if o.model.lower() in known:
        return o.model.lower(), models.shape(o.model.lower()), ()
    try:
        values = config.opened(o.model)
    except ValueError as error:
        near = nearest(o.model, known)
        raise ValueError(f"{error}{f'; models by name that are near: {near}' if near else ''}") from None
    return json.dumps(values), Shape.from_config(values), config.unread(values)


def tunes(o: Namespace) -> str:
    """The method of fine-tuning that is asked for, or ""."""
    return next((name for name in finetune.METHODS if given(o, name)), "")


def given(o: Namespace, name: str) -> bool:
    """Whether an option is on the command line."""
    return getattr(o, name) is not None and getattr(o, name) is not False


def question(o: Namespace) -> tuple[Question, tuple[str, ...]]:
    """What is asked of a cluster, and the fields of the config.json that are not read. ValueError, in one line, for
    what cannot be."""
    for name in ("optimizer", "micro_batch", "targets", "prepared", "precision"):
        if given(o, name):
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} is of fine-tuning on one GPU or one node: add --full, --lora or --qlora")
    text_of_model, shape, unread = model(o)
    if o.gpus is None:
        raise ValueError("the following arguments are required: --gpus (--help lists the options)")
    checks.whole("gpus", o.gpus, limit=MOST_GPUS)
    if o.gpus > NODE and o.gpus % NODE:
        near = NODE * round(o.gpus / NODE)
        raise ValueError(f"gpus above {NODE} fill whole nodes of {NODE}: use {near}, not {o.gpus}")
    named("device", o.device, DEVICES)
    network, loss = o.network or "ndr", o.loss or "eager"
    named("network", network, NETWORKS)
    program = named("program", o.program or "megatron", PROGRAMS)
    seq = length(o, shape, LONGEST)
    batch = PER_GPU * o.gpus if o.batch is None else o.batch
    checks.whole("batch", batch, limit=PER_GPU * MOST_GPUS)
    asked = Question(text_of_model, o.device, o.gpus, batch, seq, network, loss=loss, program=program)
    return asked, unread


def length(o: Namespace, shape: Shape, usual: int) -> int:
    """Tokens of a sequence."""
    seq = min(usual, shape.max_seq) if o.seq is None else o.seq
    checks.whole("seq", seq)
    check_positions(shape, seq)
    return seq


def tuned(o: Namespace, method: str) -> tuple[finetune.Setting, int, dict[str, tuple], tuple[str, ...]]:
    """What is asked of one GPU or one node, sequences of a step on each GPU, the values to choose from of what nobody
    gave, and the fields of the config.json that are not read. ValueError, in one line, for what cannot be."""
    check_given(o, method)
    text_of_model, shape, unread = model(o)
    gpus = 1 if o.gpus is None else o.gpus
    checks.whole("gpus", gpus)
    if gpus > NODE:
        raise ValueError(f"fine-tuning is priced on one node: use at most {NODE} GPUs, not {gpus:,}, or ask without "
                         f"--{method}")  # fmt: skip
    named("device", o.device, DEVICES)
    program = named("program", o.program or "hf", TUNERS)
    if program == "liger" and o.loss not in (None, "chunked"):
        raise ValueError(f"Liger makes the loss in chunks, together with the head: leave out --loss {o.loss}")
    if o.layout == "fsdp" and gpus == 1:
        raise ValueError("one GPU has nothing to shard: use layout ddp or offload, or more --gpus")
    batch = PER_GPU * gpus if o.batch is None else o.batch
    checks.whole("batch", batch, limit=PER_GPU * MOST_GPUS)
    if batch % gpus:
        near = gpus * max(1, round(batch / gpus))
        raise ValueError(f"batch {batch} does not divide over {gpus} GPUs: the nearest that does is {near}")
    sequences = batch // gpus
    free = free_values(o, sequences)
    rank = getattr(o, method)
    values = {
        "model": text_of_model, "device": o.device, "gpus": gpus, "method": method, "seq": length(o, shape, TUNED),
        "batch": o.micro_batch or 1, "checkpointing": o.recompute or "full", "loss": o.loss or "eager",
        "optimizer": o.optimizer or "adamw", "rank": RANK if rank is True else rank, "passes": sequences,
        "layout": o.layout or "fsdp", "precision": o.precision or "bf16", "program": program,
        "targets": o.targets or "all", "unquantized": "fp32" if o.prepared else "compute",
    }  # fmt: skip
    for name, table in (("optimizer", finetune.OPTIMIZERS), ("precision", finetune.PRECISIONS)):
        named(name, values[name], table)
    setting = finetune.Setting.of(values)
    if setting.runs != setting.program:
        raise ValueError("Liger's kernels are priced for Llama's modules only: use program hf")
    some = {"q", "k", "v"} & set(setting.recipe.targets)
    if setting.fused and len(some) in (1, 2):
        raise ValueError("its q, k and v are one matrix, which is adapted whole: use targets all, attention or q+k+v")
    return setting, sequences, free, unread


def check_given(o: Namespace, method: str) -> None:
    """ValueError for an option that another method of fine-tuning has, or none."""
    for name, methods in (
        ("targets", ("lora", "qlora")),
        ("prepared", ("qlora",)),
        ("precision", ("full",)),
        ("network", ()),
    ):
        if given(o, name) and method not in methods:
            theirs = " or ".join(f"--{one}" for one in methods) or "more than one node"
            raise ValueError(f"--{name} is of {theirs}: leave it out of --{method}")


def free_values(o: Namespace, sequences: int) -> dict[str, tuple]:
    """The values to choose from of what nobody gave; what was given is checked."""
    free: dict[str, tuple] = {}
    for name, given, every in (
        ("layout", o.layout, finetune.LAYOUTS),
        ("checkpointing", o.recompute, tuning.CHECKPOINTING),
    ):
        if given is None:
            free[name] = tuple(every)
        else:
            named(name, given, every)
    if o.micro_batch is None:
        free["batch"] = tuple(n for n in checks.divisors(sequences) if n <= finetune.BATCHES[-1])
        return free
    checks.whole("micro-batch", o.micro_batch)
    if sequences % o.micro_batch:
        near = checks.nearest(o.micro_batch, checks.divisors(sequences))
        raise ValueError(f"micro-batch {o.micro_batch} does not divide {sequences} sequences per GPU: use {near}")
    return free


def found(o: Namespace) -> dict[str, Any]:
    """What the command prints, as JSON has it."""
    method = tunes(o)
    if method:
        asked, sequences, free, unread = tuned(o, method)
        result, gpus = tuning.answer(asked, sequences, free), asked.gpus
    else:
        question_asked, unread = question(o)
        result, gpus = answer.answer(question_asked, o.layout, o.recompute), question_asked.gpus
    result["unread"] = list(unread)
    if "best" in result:
        result["run"] = answer.run(result["best"], gpus, o.tokens, o.price, o.currency)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 2 after one line on stderr for bad input."""
    try:
        options = parser().parse_args(argv)
        result = found(options)
        shown = json.dumps(result, indent=1, allow_nan=False) if options.json else text.text(result)
    except ValueError as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    print(shown)
    return 0
