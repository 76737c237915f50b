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
    """run(*inputs), recomputed in the backward pass.

    run: returns one tensor; uses weights that are trained, draws
        random numbers, and may communicate
    inputs: tensors, some of which need a gradient
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
        return run(*inputs)                     # no graph is recorded here

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
    title="Recomputed by hand",
    prompt="Write `again(run, *inputs)` as an autograd Function. It returns what `run(*inputs)` returns, with the same "
    "gradients, but saves no tensor that `run` computes inside. In the backward pass `run` runs once more.\n\n"
    "- The inputs are tensors. Some of them, such as a mask of bools, need no gradient.\n"
    "- `run` uses weights, which need their gradients too.\n"
    "- `run` drops elements at random. The second run has to drop the same ones, and random numbers drawn after the "
    "backward pass must be the same as without a second run.\n"
    "- Its input may come from another `again`, and may be used elsewhere too.\n\n"
    "It is checked on **1 and 2** processes with gloo. With two, `run` contains an all-reduce, and each rank has its "
    "own random numbers.\n\n"
    "Save your file as `again.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "In `forward` no graph is recorded. In `backward` the second run needs one: `torch.enable_grad()`.",
        "The second run starts from detached copies of the inputs: `one.detach()`, with `requires_grad_()` if the "
        "input had it.",
        "`torch.autograd.backward(out, gradient)` fills `.grad` of the weights and of the copies. `backward` returns "
        "one entry for each argument of `forward`, with None for `run` and for a mask.",
        "`torch.get_rng_state()`, `torch.set_rng_state(...)`, and around them "
        "`torch.random.fork_rng(devices=[])`, which restores the state that it found.",
    ),
    solution="```python\n"
    f"{_AGAIN_SOLUTION}```\n\n"
    "Without the random state, the backward pass drops other elements than the forward pass did, and nothing reports "
    "it. In OLMo-core recomputation should have changed nothing, and the loss after 150 steps went from 2.195 to "
    "2.495: `preserve_rng_state = False` was harmless until somebody turned dropout on (allenai/OLMo-core, pull "
    "request 828). Accelerate 1.15 passes the same option for FSDP2. The helper in guided-diffusion never saved the "
    "state (openai/guided-diffusion, issue 167), and torch.compile with a memory budget could draw new numbers too, as "
    "was found in 2026 (pytorch, issue 190758).\n\n"
    "The all-reduce inside `run` runs once more too: with tensor parallelism, recomputation repeats communication as "
    "well as FLOPs. torch's checkpoint also restores a GPU's random state and autocast, and it stops after the last "
    "tensor that is needed. The book's version is in `scaleout/parallel/recompute.py`.",
    stub=AGAIN_STUB,
    command=f"{_COMMAND} again.py",
)

ROUTED_STUB = '''\
import torch
from torch.utils.checkpoint import checkpoint


def routed(x, gate, experts):
    """A layer of experts, recomputed in the backward pass.

    x: (tokens, h); gate(x): logits, (tokens, experts)
    experts: a list of modules, (n, h) -> (n, h), n may be 0
    Each token goes to the expert with its largest logit, and the
    output is multiplied by the expert's softmax probability.
    """
    return ...
'''

_ROUTED_SOLUTION = """\
import torch
from torch.utils.checkpoint import checkpoint


def routed(x, gate, experts):
    share, chosen = gate(x).softmax(-1).max(-1)     # once, and saved

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
    title="A choice that is saved",
    prompt="A gate that runs twice on a GPU can choose another expert for a token, and no error is raised if every "
    "expert has as many tokens as before. Write `routed(x, gate, experts)`, a layer "
    "with one expert per token, so that\n\n"
    "- tensors computed inside the experts are not saved, but recomputed in the backward pass (`checkpoint` is "
    "imported);\n"
    "- the gradient of every token goes through the expert that **processed it**, even if the gate chooses otherwise "
    "the second time;\n"
    "- the gate is trained too, through the probability.\n\n"
    "The gate of the check changes its choice for some tokens when it runs again, and every expert gets as many tokens "
    "as before. It is checked on **2** processes with gloo, each with its own tokens.\n\n"
    "Save your function as `routed.py`, in the folder of the book's repository, and run the command below.",
    hints=(
        "The gate's logits are small: tokens × experts numbers. What has to be recomputed?",
        "`checkpoint(run, a, b, use_reentrant=False)` recomputes what is inside `run`. It saves a and b, and the "
        "variables that `run` closes over.",
        "In `values, indices = logits.softmax(-1).max(-1)`, gradients flow through the values.",
    ),
    solution="```python\n"
    f"{_ROUTED_SOLUTION}```\n\n"
    "The choice is one number per token and is not worth recomputing. With selective checkpointing you would save the "
    "output of `aten.topk`, and not only that of the matrix multiplication before it, which was not enough where "
    "scores were equal (NVIDIA-NeMo/Automodel, pull request 3140). If a changed choice changes the number of tokens of "
    "an expert, torch finds it by the shapes: *Recomputed values for the following tensors have different metadata* "
    "(torchtitan, issue 1117). Do not rely on this, because torch compares only shapes and types. Ordinary text has "
    "few ties, *which is why it's easy to miss* (Automodel, pull request 3156).\n\n"
    "To look for this fault in a model, run a block twice from one random state and compare the outputs, as `repeats` "
    "in `scaleout/parallel/recompute.py` does. It finds what changes for a reason, such as a bias that the router "
    "updates in its forward pass. For nearly equal scores, compare the choice itself: save it, and count the tokens "
    "whose second choice differs.",
    stub=ROUTED_STUB,
    command=f"{_COMMAND} routed.py",
)

EXERCISES = (ROUTED, RECOMPUTE_BY_HAND)
