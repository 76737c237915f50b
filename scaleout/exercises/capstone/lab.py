"""The exercise of `capstone` that is done in the lab: a checkpoint with everything that a resume needs."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

STUB = '''\
def capture(step, model, optimizer, schedule, generator):
    """Everything that a resumed run needs, after `step` steps.

    A dict of plain values and tensors.
    """
    return ...


def restore(state, model, optimizer, schedule, generator):
    """Put what `capture` returned into a job that has just started.

    Returns the number of steps done.
    """
    return ...
'''

_SOLUTION = """\
import copy


def capture(step, model, optimizer, schedule, generator):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "random": generator.get_state(),
    }
    return copy.deepcopy(state)                       # training continues while it is written


def restore(state, model, optimizer, schedule, generator):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    generator.set_state(state["random"])
    return state["step"]
"""

RESUME = Lab(
    key="resume-job",
    level=3,
    minutes=20,
    title="As if nothing had happened",
    prompt="A job on **two** ranks trains a small model with AdamW, a learning-rate schedule, and noise from a random "
    "generator of each rank. After some steps it calls `capture(step, model, optimizer, schedule, generator)` on every "
    "rank, and **continues to train** while the dict is written. Later a fresh job with another seed calls "
    "`restore(state, ...)` on every rank with that rank's dict, and trains on from the step that you return.\n\n"
    "Its losses and weights must equal those of the job that was never stopped, **bit for bit**. The dict goes through "
    "`torch.save` and `torch.load(..., weights_only=True)`, which refuses arbitrary objects. Save "
    "both functions as `mine.py` in the book's folder, and run the command below.",
    hints=(
        "Go through a step: what does it read that an earlier step has written? There are five things.",
        "`state_dict()` returns the tensors that are being trained, not copies. What happens to them while the file "
        "is written?",
        "`generator.get_state()` is a tensor. Each rank has its own, so each rank saves.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "An asynchronous checkpoint blocks training only for this copy, to host memory; the file is written during the "
    "next steps. With FSDP, `state_dict()` returns this rank's shards, and `torch.distributed.checkpoint` saves them "
    "so that another number of ranks can load them.",
    stub=STUB,
    command="python -m scaleout.exercises.capstone.ranks mine.py",
)

EXERCISES = (RESUME,)
