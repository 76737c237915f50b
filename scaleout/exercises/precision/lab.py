"""The exercises of `precision` that are done in the lab: a step that all ranks skip, and weights with an fp32 copy."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

_COMMAND = "python -m scaleout.exercises.precision.ranks"

STEP_STUB = '''\
import torch
import torch.distributed as dist


def sharded_step(weights, gradient, scaler, lr, most):
    """One step of SGD on this rank's shard, with a loss scale.

    weights: this rank's shard, fp32, flat; changed in place
    gradient: that of these weights for the scaled loss, in fp16
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
    if not norm.isfinite():                               # the same on every rank
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
    title="A step that all ranks skip",
    prompt="With ZeRO or FSDP, a rank has its own shard of the gradients, already averaged, and updates its own shard "
    "of the weights. In fp16, the gradients may overflow in **one** rank's shard only. Write `sharded_step(weights, "
    "gradient, scaler, lr, most)`:\n\n"
    "- If there is an infinity or a NaN in **any** rank's shard, no rank changes its weights. All halve the scale and "
    "set `good` to 0.\n"
    "- Otherwise unscale in fp32, clip the norm of **all** ranks' gradients together to `most`, as `clip_grad_norm_` "
    "would on one process, and step by `lr`. Add 1 to `good`. When it reaches `interval`, double the scale and set "
    "`good` to 0.\n\nA rank may own nothing. The check runs eight steps on **2 and 3** processes with gloo, and counts "
    "the bytes that you send: a few numbers are enough.\n\n"
    "Save your function as `scaled.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "Which ranks have to call the same collectives, whatever is in their shards?",
        "An all-reduce can give the sum of squares over ranks, or the maximum of a flag (`dist.ReduceOp.MAX`).",
        "fp16 divided by a scale is fp16, so small numbers become zero again. Convert first.",
    ),
    solution="```python\n"
    f"{_STEP_SOLUTION}```\n\n"
    "**One number does both.** An infinity in any square gives an infinity in the sum, on all ranks. A separate flag, "
    "reduced by its maximum, works as well. If each rank looks only at its own shard, one rank skips the step and the "
    "others do not. Then their weights belong to different steps and their scales differ, without any error message. "
    "Or the others wait for ever in a collective that the first rank never calls.\n\n"
    "Under DDP the problem does not arise, because gradients are averaged before anybody looks, and every rank gets "
    "the infinity. For sharded gradients torch has `ShardedGradScaler`, which reduces the flag: *when rank 0 have inf "
    "grad, rank 1...k should get found_inf=1* (pytorch, pull request 115710).",
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
    title="An fp32 copy that saves small updates",
    prompt="Write `master_step(weights, gradient, state, step, lr)`: AdamW on bf16 weights. In the first step it makes "
    "an fp32 copy of the weights, and stores it in `state` with both moments, also in fp32. The optimizer updates the "
    "copy. After each step the weights are the copy, rounded to bf16.\n\n"
    "AdamW multiplies by 1 − lr · DECAY and then subtracts lr · m̂ / (√v̂ + EPS), where m̂ and v̂ are the moments "
    "divided by 1 − β^step. The learning rate is so small that no weight would move in bf16. After 60 steps the "
    "weights must be those of `torch.optim.AdamW` in fp32, rounded, and `state` may use **12 bytes** per parameter. "
    "The check runs on **2** processes, each with its own weights and without communication.\n\n"
    "Save your function as `master.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "`weights.float()` makes an fp32 copy; `weights.copy_(copy)` rounds to the nearest.",
        "What does the next step start from, the weights or the copy?",
        "The square of a bf16 number has twice as many digits: convert before you square.",
    ),
    solution="```python\n"
    f"{_MASTER_SOLUTION}```\n\n"
    "Twelve bytes in fp32, and two each for the weight and the gradient, are the 16 bytes of rung 01. Now you know "
    "what four of them are for. The copy *is* the model. A checkpoint with only the bf16 weights loses the updates "
    "below their last bit, and the loss jumps when training resumes from it. Assert that there is a copy at all: *the "
    "FusedAdam code doesn't allocate master weights when the parameter dtype is bfloat16, even if you set "
    "master_weights=True* (NVIDIA/apex, issue 1728).\n\n"
    "The upper half of the copy is almost the bf16 weight, so some optimizers store only the lower 16 bits next to it, "
    "4 bytes for both (NVIDIA/Megatron-LM, issue 1821: `store_param_remainders`).",
    stub=MASTER_STUB,
    command=f"{_COMMAND} master.py",
)

EXERCISES = (MASTER, STEP)
