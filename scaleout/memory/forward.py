"""The forward of one transformer block, module by module, as allocations and frees."""

from __future__ import annotations

from scaleout.memory.activations import Sizes, block_kept, copies_kept, qk_norm_kept, relaid, tables
from scaleout.memory.tape import Tape

PATHS = {
    name: f"{part}.{name}"
    for part, names in (("attention", ("q", "k", "v", "out")), ("mlp", ("gate", "up", "down")))
    for name in names
}


def forward(z: Sizes, tape: Tape, checkpointing: str = "none") -> None:
    """The forward of one block that keeps all it needs, or, with "selective" checkpointing, not attention's core.

    Under autocast a norm's fp32 output stays, beside the 16-bit casts of it that are saved, until the function that
    took it returns; so are Q, K and V where attention copied them.
    """
    sizes, widened = block_kept(z, checkpointing), z.x if z.auto else 0
    copies, first = copies_kept(z, checkpointing), z.copies("q", "k", "v")
    passing = z.gathered if z.regathers or z.auto else 0
    _module(tape, "norm1", sizes["norm 1"], sizes["input of q, k, v"], widened)
    tape.pre_forward("attention")
    tape.hold("activations", passing)
    for name, output in (("q", z.q), ("k", z.kv), ("v", z.kv)):
        _module(tape, PATHS[name], output)
    tape.drop("activations", passing)
    tape.hold("weights", first)
    _core(z, tape, sizes["attention"], checkpointing)
    _module(tape, PATHS["out"])
    _scattered(z, tape)
    tape.post_forward("attention")
    tape.drop("activations", widened)
    tape.hold("weights", copies - first)
    inputs = sizes["input of up and gate" if z.shape.gated_mlp else "input of up"]
    _module(tape, "norm2", sizes["norm 2"], inputs, widened)
    tape.pre_forward("mlp")
    tape.hold("activations", passing)
    for name in ("gate", "up") if z.shape.gated_mlp else ("up",):
        _module(tape, PATHS[name], z.f)
    tape.drop("activations", passing)
    activation = sizes["activation function"] - (2 if z.shape.gated_mlp else 1) * z.f
    tape.hold("activations", activation, sizes["input of down"])
    _module(tape, PATHS["down"], sizes.get("dropout masks", 0), sizes.get("between adapters", 0))
    _scattered(z, tape)
    tape.post_forward("mlp")
    tape.drop("activations", widened)


def _scattered(z: Sizes, tape: Tape) -> None:
    """The partial sum of all tokens, and this rank's tokens of the sum."""
    if z.gathers:
        tape.passing("activations", z.read, z.y)


def _module(tape: Tape, name: str, *outputs: int) -> None:
    tape.pre_forward(name)
    tape.hold("activations", *outputs)
    tape.post_forward(name)


def _core(z: Sizes, tape: Tape, attention: int, checkpointing: str) -> None:
    """Attention's core, once Q, K and V exist. `attention`: bytes of it that are saved, these included."""
    qkv = z.q + 2 * z.kv
    if checkpointing == "selective":
        tape.hold("activations", tables(z))
        if z.recipe.attention == "naive":
            _passing_naive(z, tape)
        tape.drop("activations", tables(z))
    elif z.recipe.attention == "naive":
        tape.hold("activations", tables(z), qk_norm_kept(z))
        copies_before, copies_after = copied(z)
        naive_forward(z, tape, copies_before, copies_after, z.q)
        tape.hold("activations", z.q)  # the projection's input; the core holds the rest
        tape.drop("activations", (copies_before + copies_after - 1) * z.q + 2 * z.kv)
        return
    tape.hold("activations", attention - qkv)


def passing_forward(z: Sizes, tape: Tape) -> None:
    """The forward of one block that keeps nothing but its input, which is there: full checkpointing. Names hold
    tensors until their function returns: Q, K and V until attention does, the norm's output until its branch does."""
    _passing_norm(z, tape, "norm1")
    tape.pre_forward("attention")
    tape.hold("activations", z.gathered)
    for name, output in (("q", z.q), ("k", z.kv), ("v", z.kv)):
        _passing_product(z, tape, name, output)
    tape.drop("activations", z.gathered)
    if z.shape.positions == "rotary":
        _rotate(z, tape)
    naive = z.recipe.attention == "naive"
    _passing_naive(z, tape) if naive else tape.passing("activations", z.q + z.lse)
    tape.hold("activations", z.q)
    tape.passing("activations", relaid(z))
    _passing_product(z, tape, "out", z.y, cast=False)
    tape.passing("activations", z.read if z.gathers else 0)
    tape.post_forward("attention")
    tape.drop("activations", z.x, 2 * z.q, 2 * z.kv)
    _passing_dropout(z, tape)
    tape.swap("activations", z.x, z.y)  # added to the stream
    _passing_norm(z, tape, "norm2")
    _passing_mlp(z, tape)
    _passing_dropout(z, tape)
    tape.passing("activations", z.x)
    tape.drop("activations", z.x, z.y)


def _passing_mlp(z: Sizes, tape: Tape) -> None:
    """The MLP, from the norm's output to y bytes of output."""
    tape.pre_forward("mlp")
    tape.hold("activations", z.gathered)
    if z.shape.gated_mlp:
        _passing_product(z, tape, "gate", z.f)
        tape.swap("activations", z.f, z.f)
    _passing_product(z, tape, "up", z.f)
    tape.drop("activations", z.gathered)
    tape.swap("activations", z.f, z.f, *[z.f] * z.shape.gated_mlp)
    _passing_product(z, tape, "down", z.y, cast=False)
    tape.passing("activations", z.read if z.gathers else 0)
    tape.post_forward("mlp")
    tape.drop("activations", z.x, z.f)


def _passing_norm(z: Sizes, tape: Tape, name: str) -> None:
    """The book's RMS norm squares its input in fp32, and in 16 bits holds it in fp32 as well (parallel/norm.py)."""
    tape.pre_forward(name)
    if z.shape.norm == "rmsnorm":
        tape.passing("activations", 2 * z.wide32 + (z.x if z.r == 2 else -z.wide32))
    tape.hold("activations", z.x)
    tape.post_forward(name)


def _passing_product(z: Sizes, tape: Tape, name: str, output: int, cast: bool = True) -> None:
    """A matrix product. Autocast casts its fp32 input, and keeps copies of the weights until the forward ends."""
    tape.pre_forward(PATHS[name])
    cast_input = z.y if z.auto and cast else 0
    tape.hold("weights", z.copies(name))
    tape.hold("activations", cast_input, output)
    tape.drop("activations", cast_input)
    tape.post_forward(PATHS[name])


def _passing_dropout(z: Sizes, tape: Tape) -> None:
    if z.mask:
        tape.passing("activations", z.y, z.mask)


def _rotate(z: Sizes, tape: Tape) -> None:
    """Q and K are turned one after the other, each in halves that stand beside it; the old ones go last."""
    tape.passing("activations", tables(z) // 2 + 2 * z.q)
    tape.hold("activations", z.q)
    tape.passing("activations", tables(z) // 2 + 2 * z.kv)
    tape.drop("activations", z.q)


def _passing_naive(z: Sizes, tape: Tape) -> None:
    """A naive core that saves nothing: its temporaries beside Q, K and V until it has its output."""
    grouped, (copies_before, copies_after) = z.kv != z.q, copied(z)
    repeated = 2 * z.q if grouped else 0
    tape.hold("activations", repeated)
    tape.passing("activations", copies_before * z.q - repeated, z.scores)
    tape.passing("activations", 2 * z.scores)
    tape.hold("activations", z.scores, z.seq**2)
    tape.passing("activations", 2 * z.scores)
    tape.hold("activations", z.scores)
    if z.recipe.dropout:
        tape.passing("activations", z.scores, z.scores // z.e)
        tape.hold("activations", z.scores)
    tape.passing("activations", copies_after * z.q, z.q)
    tape.drop("activations", (2 + bool(z.recipe.dropout)) * z.scores, z.seq**2, repeated)


def naive_forward(z: Sizes, tape: Tape, copies_before: int, copies_after: int, output: int = 0) -> None:
    """A naive core: copies of Q, K or V, made before the scores or after; scores, masked scores and probabilities side
    by side, then the saved tensors. The `output` is left out (0 bytes) where a recomputation stops before it."""
    tape.hold("activations", copies_before * z.q, z.seq**2, z.scores)
    tape.passing("activations", 2 * z.scores)
    tape.hold("activations", z.scores)  # the scores live as long as the function
    tape.hold("activations", copies_after * z.q, z.scores + z.scores // z.e if z.recipe.dropout else 0, output)
    tape.drop("activations", z.scores)


def copied(z: Sizes) -> tuple[int, int]:
    """How many of Q, K and V a naive core copies before the scores, and after.

    K and V are copied at once to repeat grouped heads; what is left is copied for its product, to bring the heads
    of several sequences together, which rotary positions have done for Q and K already.
    """
    several, turned = z.batch > 1, z.shape.positions == "rotary"
    queries = int(several and not turned)
    return (queries + 2, 0) if z.kv != z.q else (2 * queries, int(several))
