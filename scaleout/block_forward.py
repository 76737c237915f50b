"""The forward of one transformer block, as allocations and frees: what is made, kept and let go, module by module."""

from __future__ import annotations

from scaleout.activations import Sizes, block_kept, copies_kept, norm_kept, tables
from scaleout.tape import Tape

PATHS = {name: f"{part}.{name}" for part, names in (("attention", ("q", "k", "v", "out")),
                                                    ("mlp", ("gate", "up", "down"))) for name in names}  # fmt: skip


def forward(z: Sizes, tape: Tape, how: str = "none") -> None:
    """The forward of one block that keeps all it needs, or, with "selective" checkpointing, not attention's core.

    Under autocast a norm's fp32 output is held, beside the 16-bit casts of it that are kept, until the function that
    took it returns; so are Q, K and V where attention copied them.
    """
    kept, widened = block_kept(z, how), z.x if z.auto else 0
    copies, first = copies_kept(z, how), z.copies("q", "k", "v")
    _module(tape, "norm1", kept["norm 1"], kept["input of q, k, v"], widened)
    tape.pre_forward("attention")
    for name, made in (("q", z.q), ("k", z.kv), ("v", z.kv)):
        _module(tape, PATHS[name], made)
    tape.hold("weights", first)
    _core(z, tape, kept["attention"], how)
    _module(tape, PATHS["out"])
    tape.post_forward("attention")
    tape.drop("activations", widened)
    tape.hold("weights", copies - first)
    inputs = kept["input of up and gate" if z.shape.gated_mlp else "input of up"]
    _module(tape, "norm2", kept["norm 2"], inputs, widened)
    tape.pre_forward("mlp")
    for name in ("gate", "up") if z.shape.gated_mlp else ("up",):
        _module(tape, PATHS[name], z.f)
    rest = kept["activation function"] - (2 if z.shape.gated_mlp else 1) * z.f
    tape.hold("activations", rest, kept["input of down"])
    _module(tape, PATHS["down"], kept.get("dropout masks", 0), kept.get("between adapters", 0))
    tape.post_forward("mlp")
    tape.drop("activations", widened)


def _module(tape: Tape, name: str, *made: int) -> None:
    tape.pre_forward(name)
    tape.hold("activations", *made)
    tape.post_forward(name)


def _core(z: Sizes, tape: Tape, attention: int, how: str) -> None:
    """Attention's core, once Q, K and V are there. `attention`: bytes of it that are kept, these included."""
    there = z.q + 2 * z.kv
    if how == "selective":
        began = norm_kept(z) + (3 if z.auto else 1) * z.y  # beside it autocast holds an fp32 copy
        tape.passing("activations", max(0, in_passing(z) - began - there))
    elif z.recipe.attention == "naive":
        tape.hold("activations", tables(z))
        before, after = copied(z)
        naive_forward(z, tape, before, after, z.q)
        tape.hold("activations", z.q)  # the projection's input; the core holds the rest
        tape.drop("activations", (before + after - 1) * z.q + 2 * z.kv)
        return
    tape.hold("activations", attention - there)


def passing_forward(z: Sizes, tape: Tape) -> None:
    """The forward of one block that keeps nothing but its input, which is there: full checkpointing. Names hold
    tensors until their function returns: Q, K and V until attention does, the norm's output until its branch does."""
    branch = z.y + 2 * z.q + 2 * z.kv  # with attention's output
    _module(tape, "norm1", z.y)
    tape.pre_forward("attention")
    for name, made in (("q", z.q), ("k", z.kv), ("v", z.kv)):
        _module(tape, PATHS[name], made)
    naive = z.recipe.attention == "naive"
    tape.passing("activations", max(0, _core_in_passing(z) - branch) if naive else z.q + z.lse)
    tape.hold("activations", z.q)
    _module(tape, PATHS["out"], z.y)
    tape.post_forward("attention")
    tape.drop("activations", branch)
    tape.swap("activations", z.x, z.y)  # added to the stream
    _module(tape, "norm2", z.y)
    tape.pre_forward("mlp")
    if z.shape.gated_mlp:
        _module(tape, PATHS["gate"], z.f)
        tape.swap("activations", z.f, z.f)
    _module(tape, PATHS["up"], z.f)
    tape.swap("activations", z.f, z.f, *[z.f] * z.shape.gated_mlp)
    _module(tape, PATHS["down"], z.y)
    tape.post_forward("mlp")
    tape.drop("activations", z.y, z.f)
    tape.passing("activations", z.x)
    tape.drop("activations", z.x, z.y)


def in_passing(z: Sizes) -> int:
    """The most that the forward of one block holds where checkpointing keeps little of it: a naive core's scores, or
    what the MLP makes in full checkpointing."""
    mlp = 2 * z.x + (2 + z.shape.gated_mlp + z.frozen) * z.f if z.recipe.checkpointing == "full" else 0
    return max(_core_in_passing(z), mlp)


def _core_in_passing(z: Sizes) -> int:
    """The same of a naive core, with what the block has made before it; 0 for a fused one."""
    if z.recipe.attention != "naive":
        return 0
    kept = block_kept(z, "none")
    inputs = z.x if z.recipe.checkpointing == "full" else kept["norm 1"] + kept["input of q, k, v"]
    repeated = 2 * z.q if z.kv != z.q else 0
    mask = z.scores // z.e if z.recipe.dropout else 0
    return inputs + tables(z) + z.q + 2 * z.kv + repeated + z.seq**2 + 3 * z.scores + mask


def naive_forward(z: Sizes, tape: Tape, before: int, after: int, out: int = 0) -> None:
    """A naive core: copies of Q, K or V, `before` the scores or `after`; scores, masked scores and probabilities side
    by side, then what is kept. `out` bytes of output are left out where a recomputation stops before it."""
    tape.hold("activations", before * z.q, z.seq**2, z.scores)
    tape.passing("activations", 2 * z.scores)
    tape.hold("activations", z.scores)  # the scores live as long as the function
    tape.hold("activations", after * z.q, z.scores + z.scores // z.e if z.recipe.dropout else 0, out)
    tape.drop("activations", z.scores)


def copied(z: Sizes) -> tuple[int, int]:
    """How many of Q, K and V a naive core copies before the scores, and after.

    K and V are copied at once to repeat grouped heads; what is left is copied for its product, to bring the heads
    of several sequences together, which rotary positions have done for Q and K already.
    """
    apart, turned = z.batch > 1, z.shape.positions == "rotary"
    queries = int(apart and not turned)
    return (queries + 2, 0) if z.kv != z.q else (2 * queries, int(apart))
