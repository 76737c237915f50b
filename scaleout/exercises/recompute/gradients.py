"""The exercise of `recompute` on a checkpoint whose input needs no gradient."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Option

FROZEN_INPUT = Choice(
    key="frozen-input",
    level=2,
    minutes=4,
    title="A fifth of the memory",
    prompt="Adapters in every block are trained, and a new output head. The model itself is frozen, including its "
    "embedding. Every block runs in `checkpoint(block, x, use_reentrant=...)`. With **False** the step peaks at 60 GB. "
    "With **True** it peaks at 13 GB and takes a third of the time. The loss falls with both. With True there is a "
    "warning: *None of the inputs have requires_grad=True. Gradients will be None*. What happened?",
    hints=(
        "With True the checkpoint is one autograd Function. When does autograd record a Function at all?",
        "x is the output of the embedding. If the embedding is frozen, who needs the gradient of x?",
    ),
    solution="**The adapters get no gradient, and only the head is trained.** With `use_reentrant=True` a checkpoint "
    "is one autograd Function of x. Autograd records it only if one of its *inputs* needs a gradient; the adapters' "
    "weights, which are used inside, do not count. x comes from a frozen embedding, so the first block is not "
    "recorded. Its output therefore needs no gradient either, and so on to the head. There is no backward pass through "
    "the blocks, which explains the time and the memory. The head is trained, which explains the loss.\n\n"
    "With `use_reentrant=False` the blocks are recorded as usual, and only their saved tensors are replaced. Use that. "
    "Or make the output of the embedding need a gradient, which is what `enable_input_require_grads()` of transformers "
    "does. And assert after the first backward pass that everything that is trained has a gradient.\n\n"
    "The figures and the warning come from an issue that takes the small peak for the right one: *gradient "
    "checkpointing with use_reentrant=False cannot reduce peak memory*, 60.84 GB against 12.82 (pytorch, issue "
    "147449). Others froze embeddings and met the same fault: *all gradient calculation will be disabled* "
    "(transformers, issue 21381, and 26221 with adapters); *Is this behavior normal?* (TinyLLaVA_Factory, issue 144).",
    options=(
        Option(
            "no-gradient",
            "Only the head is trained: no block is in the graph",
            "Right. Nothing that computes the blocks' gradients was recorded, and nothing was saved for it.",
            True,
        ),
        Option(
            "graph",
            "True stores no graph of a block, and False stores it",
            "Both free a block's saved tensors and run it again. With True it was not even run again.",
        ),
        Option(
            "not-again",
            "False recomputes nothing, and so saves everything",
            "It does recompute the blocks: it saves their inputs, and all tensors of one block at a time. What does "
            "True save?",
        ),
        Option(
            "random",
            "True skips the random state, which False has to save",
            "Both save it unless preserve_rng_state is False, and it takes a few kilobytes.",
        ),
        Option(
            "late",
            "True computes the adapters' gradients at the very end",
            "The warning is to be read literally: they are None, and the optimizer skips parameters without a "
            "gradient.",
        ),
    ),
)

EXERCISES = (FROZEN_INPUT,)
