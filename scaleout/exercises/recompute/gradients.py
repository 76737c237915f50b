"""The exercise of `recompute` on a checkpoint whose input needs no gradient."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

FROZEN_INPUT = Choice(
    key="frozen-input",
    level=2,
    minutes=4,
    title="A fifth of the memory",
    prompt="Adapters in every block are trained, and a new head. The model itself is frozen, its embedding too. Every "
    "block is run by `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=...)`. With **False** the step peaks "
    "at 60 GB, with **True** at 13 GB, in a third of the time. The loss falls with both. With True there is a warning: "
    "*None of the inputs have requires_grad=True. Gradients will be None*. What happened?",
    hints=(
        "With True the checkpoint is one autograd Function. When does autograd record a Function at all?",
        "x is the embedding's output. Who needs the gradient of x, with a frozen embedding?",
    ),
    solution="**The adapters get no gradient, and only the head learns.** With `use_reentrant=True` a checkpoint is "
    "one autograd Function of x. Autograd records it only if one of its *inputs* needs a gradient; the adapters' "
    "weights, which are used inside, do not count. x comes from a frozen embedding, so the first block is not "
    "recorded, its output needs no gradient either, and so on to the head. There is no backward through the blocks, "
    "hence the time and the memory. The head trains, hence the loss.\n\n"
    "With `use_reentrant=False` the blocks are recorded as always, and only what they keep is replaced. Use that. Or "
    "make the embedding's output need a gradient: that is what `enable_input_require_grads()` of transformers is for. "
    "And assert after the first backward that everything that is trained has a gradient.\n\n"
    "The figures and the warning are those of an issue which takes the small peak for the right one: *gradient "
    "checkpointing with use_reentrant=False cannot reduce peak memory*, 60.84 GB against 12.82 (pytorch, issue "
    "147449). Others froze embeddings and met the same: *all gradient calculation will be disabled* (transformers, "
    "issue 21381, and 26221 with adapters); *Is this behavior normal?* (TinyLLaVA_Factory, issue 144).",
    options=(
        Option(
            "no-gradient",
            "Only the head learns: blocks are not in the graph",
            "Right. None of what makes the blocks' gradients was recorded, and nothing of it was kept.",
            True,
        ),
        Option(
            "graph",
            "True keeps no graph of a block, and False keeps it",
            "Both drop what a block keeps and run it again. With True it was not even run again.",
        ),
        Option(
            "not-again",
            "False makes nothing again, and so keeps everything",
            "It does make blocks again: it keeps their inputs, and one block whole at a time. What does True keep?",
        ),
        Option(
            "random",
            "True skips the random state, which False has to keep",
            "Both keep it unless preserve_rng_state is False, and it takes a few kilobytes.",
        ),
        Option(
            "late",
            "True adds up the adapters' gradients at the very end",
            "The warning is to be read literally: they are None, and the optimizer skips what has none.",
        ),
    ),
)

EXERCISES = (FROZEN_INPUT,)
