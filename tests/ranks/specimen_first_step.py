"""Labs up to their first training step, many in one launch: specimen_first_step.py CASES.json, a list of [lab, words].

Prints one JSON list on rank 0, [how it ended, what it printed] of each case: "step", "end" or an error's words.
Everything is the lab's own, up to the step after which it is stopped. Only the model computes less: it looks at the
first sequence of its batch, a preset on fake tensors has two blocks, and what torch.compile hands a graph to is
"eager", for which no C++ compiler is needed.
"""

import contextlib
import functools
import gc
import importlib.util
import io
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from scaleout.lab import corpus, options, session
from scaleout.measure import architecture as measure_architecture
from scaleout.measure import architecture_input, architecture_link, architecture_saves, model_run, rounds
from scaleout.measure import bottlenecks as measure_bottlenecks
from scaleout.measure import budget as measure_budget
from scaleout.measure import mesh as measure_mesh
from scaleout.measure import mesh_link as measure_mesh_link
from scaleout.measure import recompute as measure_recompute
from scaleout.measure import slow_link as measure_slow_link
from scaleout.measure import tensor_link as measure_tensor_link
from scaleout.parallel import fsdp_ways, pipeline_ways, precision, tensor_ways
from scaleout.parallel.tensor_model import TensorTransformer
from scaleout.parallel.transformer import Transformer
from scaleout.train import batches

LABS = Path(__file__).resolve().parents[2] / "labs"
# What makes a step, of each lab.
STEPS = (
    (rounds.Alternation, "take"),
    (fsdp_ways.FSDPWay, "step"),
    (pipeline_ways.Pipeline, "step"),
    (tensor_ways.TensorWay, "step"),
    (precision.PrecisionWay, "update"),
    (measure_recompute.RecomputeWay, "step"),
    (measure_recompute, "saved"),
    (measure_architecture.Bench, "step"),
    (architecture_input.Input, "step_seconds"),
    (architecture_saves.Saver, "save"),
    (measure_bottlenecks.Bench, "step"),
    (measure_budget.Study, "_update"),
    (measure_mesh.MeshWay, "step"),
    (model_run.Run, "step"),
)


class Reached(Exception):
    """A step of training has been made."""


def stop_after(owner, name):
    """Let the method `name` end the lab once it has done its work."""
    made = getattr(owner, name)

    @functools.wraps(made)
    def once(*args, **more):
        made(*args, **more)
        raise Reached

    setattr(owner, name, once)


@functools.cache
def module(name):
    """A lab, that stops after a step."""
    sys.path.insert(0, str(LABS))
    made = importlib.import_module(name)
    if name == "capstone":
        stop_after(made.Job, "step")
    if name == "memory":
        stop_after(made.Run, "one")
        whole = made.preset
        made.preset = lambda name: replace(whole(name), layers=2)
    return made


def slow_link(s, words):
    """A step of what labs/slow_link.py starts on each host; its links need root, and are not shaped."""
    slow = module("slow_link")
    _, o = options.parse(slow.TIERS, slow.__doc__, words)
    measure_slow_link.Worker(s, asdict(o) | {"cases": slow.cases(o)}, None).step("none", 1, o.micro_batch)
    raise Reached


def tensor_link(s, words):
    """A step of what labs/tensor.py --link starts on each host."""
    lab = module("tensor")
    _, o = options.parse(lab.TIERS, lab.__doc__, words)
    measure_tensor_link.Worker(s, lab.plan(o), None).step("tensor")


def mesh_link(s, words):
    """A step of what labs/mesh.py --link starts on each host."""
    lab = module("mesh")
    _, o = options.parse(lab.TIERS, lab.__doc__, words)
    worker = measure_mesh_link.Worker(s, lab.plan(o), None)
    worker.step(worker.axes[0])


def placement(s, words):
    """A step of what labs/architecture.py --placement starts on each host."""
    architecture_link.Worker(s, module("architecture").PLACED | {"rates": [None]}, None).step("well")
    raise Reached


def outcome(s, name, words):
    """ "step", "end", or the words of an error, of this rank."""
    try:
        if name == "slow_link":
            slow_link(s, words)
        if "--placement" in words:
            placement(s, words)
        if "--link" in words:
            {"tensor": tensor_link, "mesh": mesh_link}[name](s, words)
        module(name).main(s, words)
    except Reached:
        return "step"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "end"


def shrink():
    """Let the model look at one sequence of its batch."""
    for kind in (Transformer, TensorTransformer):
        whole = kind.forward
        kind.forward = lambda self, *batch, whole=whole: whole(self, *(part[:1] for part in batch))
    torch.nn.Module.compile = functools.partialmethod(torch.nn.Module.compile, backend="eager")
    corpus.texts = functools.cache(corpus.texts)  # the same files again and again
    batches.read = functools.cache(batches.read)


def main(s):
    """All cases, each in a folder of its own beside the file of cases."""
    shrink()
    for owner, name in STEPS:
        stop_after(owner, name)
    cases, found = json.loads(Path(sys.argv[1]).read_text()), []
    for name, _ in cases:
        module(name)
    gc.freeze()  # what is imported is not to be looked through after every case
    for number, (name, words) in enumerate(cases):
        folder = Path(sys.argv[1]).parent / f"{s.world}-{number}"
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            mine = outcome(s, name, words)
        every = [mine]
        if s.world > 1:
            every = [None] * s.world
            dist.all_gather_object(every, mine)
        found.append([" | ".join(dict.fromkeys(every)), said.getvalue()])
        torch._dynamo.reset()
        if not number % 8:  # what a lab leaves behind is small, and takes long to look for
            gc.collect()
    s.say(json.dumps(found))
    s.barrier()
    sys.stdout.flush()
    os._exit(0)  # what fifty labs stopped in the middle leave behind is not to be taken down one by one


if __name__ == "__main__":
    session.run(main)
