"""The exercises of `recompute` that are done in the lab: a checkpoint by hand, and a router whose choice is kept."""

from __future__ import annotations

from scaleout.exercises.engine import Lab

_COMMAND = "python -m scaleout.exercises.recompute.ranks"

AGAIN_STUB = '''\
import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, *inputs):
        return ...

    @staticmethod
    def backward(ctx, gradient):
        return ...


def again(run, *inputs):
    """run(*inputs), made again in the backward.

    run: gives one tensor; uses weights that are trained, draws
        random numbers, and may send messages
    inputs: tensors, of which some need a gradient
    """
    return Again.apply(run, *inputs)
'''

_AGAIN_SOLUTION = """\
import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, *inputs):
        ctx.run, ctx.random = run, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return run(*inputs)                     # nothing in here is recorded

    @staticmethod
    def backward(ctx, gradient):
        inputs = [one.detach().requires_grad_(one.requires_grad)
                  for one in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random)     # of the first run
            out = ctx.run(*inputs)
        torch.autograd.backward(out, gradient)  # for the weights too
        return None, *(one.grad for one in inputs)


def again(run, *inputs):
    return Again.apply(run, *inputs)
"""

RECOMPUTE_BY_HAND = Lab(
    key="again-by-hand",
    level=3,
    minutes=25,
    title="Made again by hand",
    prompt="Write `again(run, *inputs)` as an autograd Function, by hand: what `run(*inputs)` gives, with the same "
    "gradients, but nothing that `run` makes inside is kept until the backward. There it runs once more.\n\n"
    "- The inputs are tensors, and some of them, such as a mask of bools, need no gradient.\n"
    "- `run` uses weights, which have to get their gradients too.\n"
    "- It drops elements at random. The second run has to drop the same ones, and the numbers that others draw after "
    "the backward must be as if there had been no second run.\n"
    "- It may stand behind another `again`, and an input may be used elsewhere as well.\n\n"
    "It is checked on **1 and 2** processes with gloo. On two, `run` has an all-reduce inside, and each rank its own "
    "random numbers.\n\n"
    "Save your file as `again.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "In `forward` nothing is recorded. In `backward` the second run has to be: `torch.enable_grad()`.",
        "The second run begins at copies of the inputs that hang on nothing: `one.detach()`, with "
        "`requires_grad_()` where the input had it.",
        "`torch.autograd.backward(out, gradient)` fills `.grad` of weights and of copies alike. What `backward` "
        "returns has one entry for each argument of `forward`, with None for `run` and for a mask.",
        "`torch.get_rng_state()`, `torch.set_rng_state(...)`, and around them "
        "`torch.random.fork_rng(devices=[])`, which puts back what it found.",
    ),
    solution="```python\n"
    f"{_AGAIN_SOLUTION}```\n\n"
    "Without the random state the backward belongs to other elements than the forward, and nothing says so. In "
    "OLMo-core recomputation should have changed nothing, and moved the loss after 150 steps from 2.195 to 2.495: "
    "`preserve_rng_state = False`, harmless until somebody turned dropout on (allenai/OLMo-core, pull request 828). "
    "Accelerate 1.15 passes the same for FSDP2. "
    "guided-diffusion's own helper never kept it (openai/guided-diffusion, issue 167), and torch.compile "
    "with a memory budget could draw new numbers too, as was found in 2026 (pytorch, issue 190758).\n\n"
    "The message inside `run` is sent once more too: with tensor parallelism recomputation costs wires as well as "
    "FLOPs. torch's own keeps a GPU's random state and autocast as well, and stops after the last tensor that is "
    "waited for. The book's is in `scaleout/parallel/recompute.py`.",
    stub=AGAIN_STUB,
    command=f"{_COMMAND} again.py",
)

ROUTED_STUB = '''\
import torch
from torch.utils.checkpoint import checkpoint


def routed(x, gate, experts):
    """A layer of experts, made again in the backward.

    x: (tokens, h); gate(x): logits, (tokens, experts)
    experts: a list of modules, (n, h) -> (n, h), n may be 0
    Each token goes to the expert of its largest logit, and what
    that gives is multiplied by the expert's softmax probability.
    """
    return ...
'''

_ROUTED_SOLUTION = """\
import torch
from torch.utils.checkpoint import checkpoint


def routed(x, gate, experts):
    share, chosen = gate(x).softmax(-1).max(-1)     # once, and kept

    def run(x, share):
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            mine = chosen == i
            out[mine] = share[mine, None] * expert(x[mine])
        return out

    return checkpoint(run, x, share, use_reentrant=False)
"""

ROUTED = Lab(
    key="kept-choice",
    level=3,
    minutes=20,
    title="A choice that is kept",
    prompt="On GPUs a gate does not give the same to the last digit twice, and where two experts are nearly level the "
    "second run may choose the other one. If then every expert has as many tokens as before, nothing errors: the loss "
    "is right, and the gradients are those of a model that was not run. Write `routed(x, gate, experts)`, a layer of "
    "experts with one expert a token, so that\n\n"
    "- what the experts make inside is not kept, but made again in the backward (`checkpoint` is imported);\n"
    "- every token's gradient goes through the expert that it **went to**, whatever the gate says a second time;\n"
    "- the gate is trained too, by the probability that multiplies.\n\n"
    "The gate of the check changes its mind on some tokens when it is asked again, so that every expert keeps its "
    "number of tokens. It is checked on **2** processes with gloo, each with its own tokens.\n\n"
    "Save your function as `routed.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "The gate's logits are small: tokens × experts numbers. What has to be made again?",
        "`checkpoint(run, a, b, use_reentrant=False)` makes again what is inside `run`, and keeps a and b, and what "
        "`run` closes over.",
        "`values, indices = logits.softmax(-1).max(-1)`: gradients flow through the values.",
    ),
    solution="```python\n"
    f"{_ROUTED_SOLUTION}```\n\n"
    "The choice takes a number a token and is not worth making again. With selective checkpointing you would list "
    "`aten.topk` among what is kept, and not only the product before it: that was not enough where scores are level "
    "(NVIDIA-NeMo/Automodel, pull request 3140). Where a changed choice changes the number of an expert's tokens, "
    "torch finds it by the shapes: *Recomputed values for the following tensors have different metadata* (torchtitan, "
    "issue 1117). Do not rely on it: shapes and types are all that it compares. Ordinary text has few ties, *which is "
    "why it's easy to miss* (Automodel, pull request 3156).\n\n"
    "To look for it in a model, run a block twice from one random state and compare: `repeats` in "
    "`scaleout/parallel/recompute.py` does that. It finds what changes for a reason, such as a bias that the router "
    "moves in its forward. Level scores need the choice itself: keep it, compare, and count the tokens that differ.",
    stub=ROUTED_STUB,
    command=f"{_COMMAND} routed.py",
)

EXERCISES = (ROUTED, RECOMPUTE_BY_HAND)
