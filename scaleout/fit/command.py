"""A model's config.json on GPUs, from the command line: what fits, the step time, the price, and what to try first.

    python -m scaleout.fit config.json --gpus 8 --device h100-sxm
    python -m scaleout.fit llama-3-70b --gpus 64 --device h100-sxm --seq 8192 --batch 512 --tokens 1e12 --price 2.1
    python -m scaleout.fit config.json --gpus 8 --device a100-80gb --program hf --layout zero=3 --recompute full --json

The model is a config.json of the Hugging Face Hub, the folder of one, or the name of a model of the book. Without
--layout the best of all layouts is shown. Nothing is downloaded. Standard library only.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from scaleout.fit import answer, text
from scaleout.spec import checks, config
from scaleout.spec.command import Parser
from scaleout.spec.devices import DEVICES
from scaleout.spec.transformer import PRESETS, Shape, check_positions
from scaleout.timing.price import EXAMPLE
from scaleout.timing.quick import RECOMPUTE
from scaleout.views.choices import NODE
from scaleout.views.planner.setting import MOST_GPUS, NETWORKS, RUNS, Question

PROGRAMS = {"hf": "huggingface", "torchtitan": "compiled"} | {name: name for name in RUNS}
LONGEST = 8192  # tokens of a sequence, where nobody says how many
PER_GPU = 8  # sequences of a step per GPU, where nobody says how many


def parser() -> Parser:
    options = Parser(__doc__ or "", prog="python -m scaleout.fit")
    options.add_argument("model", help=f"a config.json, its folder, or one of {', '.join(PRESETS)}")
    options.add_argument("--gpus", type=int, required=True, help=f"in whole nodes of {NODE} above {NODE}")
    options.add_argument("--device", required=True, help=", ".join(DEVICES))
    options.add_argument("--program", default="megatron", help=f"{', '.join(PROGRAMS)} (megatron)")
    options.add_argument(
        "--seq", type=int, help=f"tokens of a sequence (up to {LONGEST:,}, as the model has positions)"
    )
    options.add_argument("--batch", type=int, help=f"sequences of a step, of all GPUs together ({PER_GPU} per GPU)")
    options.add_argument("--layout", help="such as tp=2,pp=2,zero=1; dp is what is left (the best)")
    options.add_argument("--recompute", help=f"with --layout: {', '.join(RECOMPUTE)} (the fastest that fits)")
    options.add_argument("--loss", default="eager", help="eager, fused or chunked (eager)")
    options.add_argument("--network", default="ndr", help=f"between nodes: {', '.join(NETWORKS)} (ndr)")
    options.add_argument("--tokens", type=float, default=1e9, help="of the whole run (1e9)")
    options.add_argument("--price", type=float, default=EXAMPLE.gpu_hour, help="of one GPU for one hour (an example)")
    options.add_argument("--currency", default=EXAMPLE.currency)
    options.add_argument("--json", action="store_true", help="the same as JSON")
    return options


def question(o: Namespace) -> tuple[Question, tuple[str, ...]]:
    """What is asked, and the fields of the config.json that are not read. ValueError, in one line, for what cannot
    be."""
    unread: tuple[str, ...] = ()
    model = o.model
    if model in PRESETS:
        shape = PRESETS[model]
    else:
        values = config.opened(model)
        shape, unread = Shape.from_config(values), config.unread(values)
        model = json.dumps(values)
    checks.whole("gpus", o.gpus, limit=MOST_GPUS)
    if o.gpus > NODE and o.gpus % NODE:
        near = NODE * round(o.gpus / NODE)
        raise ValueError(f"gpus above {NODE} fill whole nodes of {NODE}: use {near}, not {o.gpus}")
    checks.known("device", o.device, DEVICES)
    checks.known("network", o.network, NETWORKS)
    program = checks.known("program", o.program, PROGRAMS)
    seq = min(LONGEST, shape.max_seq) if o.seq is None else o.seq
    checks.whole("seq", seq)
    check_positions(shape, seq)
    batch = PER_GPU * o.gpus if o.batch is None else o.batch
    checks.whole("batch", batch, limit=PER_GPU * MOST_GPUS)
    return Question(model, o.device, o.gpus, batch, seq, o.network, loss=o.loss, program=program), unread


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 2 after one line on stderr for bad input."""
    try:
        options = parser().parse_args(argv)
        asked, unread = question(options)
        found = answer.answer(asked, options.layout, options.recompute)
        found["unread"] = list(unread)
        if "best" in found:
            found["run"] = answer.run(found["best"], asked.gpus, options.tokens, options.price, options.currency)
    except ValueError as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=1) if options.json else text.text(found))
    return 0
