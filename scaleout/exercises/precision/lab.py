"""The exercises of `precision` that are done in the lab: a step that all ranks leave out, and weights with a copy."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

_COMMAND = "python -m scaleout.exercises.precision.ranks"

STEP_STUB = '''\
import torch
import torch.distributed as dist


def sharded_step(weights, gradient, scaler, lr, most):
    """One step of SGD on this rank's part, with a loss scale.

    weights: this rank's part, fp32, flat; changed in place
    gradient: of these weights, of the scaled loss, in fp16
    scaler: {"scale": ..., "good": ..., "interval": ...}, the same
        on all ranks; changed in place
    most: the largest norm of all ranks' gradients together
    """
    return ...
'''

_STEP_SOLUTION = """\
import torch
import torch.distributed as dist


def sharded_step(weights, gradient, scaler, lr, most):
    own = gradient.float() / scaler["scale"]              # unscale, in fp32
    squares = own.square().sum()
    dist.all_reduce(squares)                              # inf and NaN stay in it
    norm = squares.sqrt()
    if not norm.isfinite():                               # somewhere: so everywhere
        scaler.update(scale=scaler["scale"] / 2, good=0)
        return
    if norm > most:
        own *= most / norm                                # clip
    weights -= lr * own                                   # step
    scaler["good"] += 1
    if scaler["good"] == scaler["interval"]:
        scaler.update(scale=scaler["scale"] * 2, good=0)
"""

STEP = Lab(
    key="scaled-step",
    level=3,
    minutes=20,
    title="A step that all leave out",
    prompt="With ZeRO or FSDP a rank has its own part of the gradients, already averaged, and updates its own part of "
    "the weights. In fp16 an overflow may lie in **one** rank's part alone. Write "
    "`sharded_step(weights, gradient, scaler, lr, most)`:\n\n"
    "- If there is an infinity or a NaN in **any** rank's part, no rank changes its weights; all halve the scale and "
    "set `good` to 0.\n"
    "- Else: unscale in fp32, clip by the norm of **all** ranks' gradients to `most`, as `clip_grad_norm_` would on "
    "one process, and step by `lr`. `good` is counted up; when it reaches `interval` the scale is doubled and `good` "
    "is 0.\n\nA rank may own nothing. It is checked on **2 and 3** processes with gloo, over eight steps, and what you "
    "send is counted: a few numbers, not gradients.\n\n"
    "Save your function as `scaled.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "Which ranks have to make the same calls, whatever is in their parts?",
        "A flag can be added up, or its maximum taken (`dist.ReduceOp.MAX`). Squares can be added up.",
        "fp16 divided by a scale is fp16: what was lifted falls back. Convert first.",
    ),
    solution="```python\n"
    f"{_STEP_SOLUTION}```\n\n"
    "**One number does both.** An infinity in any square is one in the sum, on all ranks; a flag of its own, reduced "
    "by its maximum, does it as well. Where each rank looks at its own part alone, one leaves the step out and the "
    "others make theirs: the weights are then of two different steps, the scales differ from there on, and nothing "
    "errors. Or the one that returns early is waited for by all others.\n\n"
    "Under DDP this looks solved, since gradients are averaged before anybody looks, and an infinity is averaged to "
    "all. For parts of gradients torch has `ShardedGradScaler`, which reduces the flag: *when rank 0 have inf grad, "
    "rank 1...k should get found_inf=1*, says the pull request that mended the case in which they did not (pytorch, "
    "pull request 115710; with gradients in the host's memory the flag had been copied before the reduction was "
    "through). A rank without any part made it fail as well (issue 99174).",
    stub=STEP_STUB,
    command=f"{_COMMAND} scaled.py",
)

MASTER_STUB = '''\
import torch

BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.5


def master_step(weights, gradient, state, step, lr):
    """One AdamW step on bf16 weights, with an fp32 copy of them.

    weights: bf16, flat; changed in place
    gradient: bf16, as long as weights
    state: a dict, empty before the first step
    step: 1, 2, 3, ...
    """
    return ...
'''

_MASTER_SOLUTION = """\
import torch

BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.5


def master_step(weights, gradient, state, step, lr):
    if not state:
        zeros = torch.zeros(len(weights))
        state.update(copy=weights.float(), m=zeros, v=zeros.clone())
    copy, m, v = state["copy"], state["m"], state["v"]
    g = gradient.float()                                  # before it is squared
    m.lerp_(g, 1 - BETAS[0])
    v.lerp_(g.square(), 1 - BETAS[1])
    copy *= 1 - lr * DECAY
    down = (v / (1 - BETAS[1] ** step)).sqrt() + EPS
    copy -= lr * m / (1 - BETAS[0] ** step) / down
    weights.copy_(copy)                                   # rounds to bf16
"""

MASTER = Lab(
    key="master-copy",
    level=3,
    minutes=15,
    title="A copy that keeps what is cut off",
    prompt="Write `master_step(weights, gradient, state, step, lr)`: AdamW on weights in bf16. What the optimizer "
    "steps is an fp32 copy, which it makes from the weights in the first step and keeps in `state` with both moments, "
    "also in fp32. After each step the weights are the copy, rounded to bf16.\n\n"
    "AdamW multiplies by 1 − lr · DECAY and then steps by lr · m̂ / (√v̂ + EPS), where m̂ and v̂ are the moments over "
    "1 − β^step. The learning rate is so small that no weight would move in bf16. After 60 steps the weights have to "
    "be those of `torch.optim.AdamW` in fp32, rounded; `state` may hold **12 bytes** for each parameter. It is checked "
    "on **2** processes, each with weights of its own, and nothing is to be sent.\n\nSave your function as "
    "`master.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "`weights.float()` makes an fp32 copy; `weights.copy_(copy)` rounds to the nearest.",
        "Which of the two is read in the next step, the weights or the copy?",
        "The square of a bf16 number has twice its digits: convert before you square.",
    ),
    solution="```python\n"
    f"{_MASTER_SOLUTION}```\n\n"
    "Twelve bytes in fp32 and two each for weight and gradient: the 16 bytes of rung 01, and now you know what four "
    "of them are for. The copy *is* the model. A checkpoint that holds the bf16 weights alone loses what was gathered "
    "below their last bit, and a resume from it begins with a bump. Whether you have a copy at all is worth an "
    "assertion: *the FusedAdam code doesn't allocate master weights when the parameter dtype is bfloat16, even if you "
    "set master_weights=True* (NVIDIA/apex, issue 1728).\n\n"
    "As the copy's upper half is nearly the bf16 weight, some optimizers keep only the lower 16 bits beside it, and "
    "hold both in 4 bytes (NVIDIA/Megatron-LM, issue 1821: `store_param_remainders`).",
    stub=MASTER_STUB,
    command=f"{_COMMAND} master.py",
)

EXERCISES = (MASTER, STEP)
