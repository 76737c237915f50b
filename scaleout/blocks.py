"""The backward of one transformer block, as allocations and frees. What each operation kept: `activations`."""

from __future__ import annotations

from scaleout.activations import Sizes, adapters_kept, block_kept, copies_kept, norm_kept, relaid, tables
from scaleout.states import adapter_parameters, slice_linears
from scaleout.tape import Tape
from scaleout.transformer import norm_parameters

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
        began = norm_kept(z) + (3 * z.y + z.x if z.auto else z.y)
        tape.passing("activations", max(0, in_passing(z) - began - there))
    elif z.recipe.attention == "naive":
        tape.hold("activations", tables(z))
        before, after = _copied(z)
        naive_forward(z, tape, before, after, z.q)
        tape.hold("activations", z.q)  # the projection's input; the core holds the rest
        tape.drop("activations", (before + after - 1) * z.q + 2 * z.kv)
        return
    tape.hold("activations", attention - there)


def passing_forward(z: Sizes, tape: Tape) -> None:
    """The forward of one block that keeps nothing but its input, which is there: full checkpointing."""
    made = (z.y, z.q, z.kv, z.kv)
    tape.hold("activations", z.y)
    for name in ("norm1", "attention", "attention.q", "attention.k", "attention.v"):
        tape.pre_forward(name)
        tape.post_forward(name) if name != "attention" else None
    tape.hold("activations", *made[1:])
    tape.passing("activations", max(0, in_passing(z) - sum(made)) if z.recipe.attention == "naive" else z.q + z.lse)
    tape.drop("activations", *made)
    _module(tape, PATHS["out"])
    tape.post_forward("attention")
    tape.pre_forward("norm2")
    tape.post_forward("norm2")
    tape.pre_forward("mlp")
    held = 2 * z.x + (2 + z.shape.gated_mlp + z.frozen) * z.f
    tape.hold("activations", held)
    for name in ("gate", "up", "down") if z.shape.gated_mlp else ("up", "down"):
        tape.pre_forward(PATHS[name])
        tape.post_forward(PATHS[name])
    tape.post_forward("mlp")
    tape.drop("activations", held)


def in_passing(z: Sizes) -> int:
    """The most that the forward of one block holds where checkpointing keeps little of it: a naive core's scores, or
    what the MLP makes in full checkpointing."""
    full, core, mlp = z.recipe.checkpointing == "full", 0, 0
    if z.recipe.attention == "naive":
        kept = block_kept(z, "none")
        inputs = z.x if full else kept["norm 1"] + kept["input of q, k, v"]
        repeated = 2 * z.q if z.kv != z.q else 0
        mask = z.scores // z.e if z.recipe.dropout else 0
        core = inputs + tables(z) + z.q + 2 * z.kv + repeated + z.seq**2 + 3 * z.scores + mask
    if full:
        mlp = 2 * z.x + (2 + z.shape.gated_mlp + z.frozen) * z.f
    return max(core, mlp)


def naive_forward(z: Sizes, tape: Tape, before: int, after: int, out: int = 0) -> None:
    """A naive core: copies of Q, K or V, `before` the scores or `after`; scores, masked scores and probabilities side
    by side, then what is kept. `out` bytes of output are left out where a recomputation stops before it."""
    tape.hold("activations", before * z.q, z.seq**2, z.scores)
    tape.passing("activations", 2 * z.scores)
    tape.hold("activations", z.scores)  # the scores live as long as the function
    tape.hold("activations", after * z.q, z.scores + z.scores // z.e if z.recipe.dropout else 0, out)
    tape.drop("activations", z.scores)


def _copied(z: Sizes) -> tuple[int, int]:
    """How many of Q, K and V a naive core copies before the scores, and after.

    K and V are copied at once to repeat grouped heads; what is left is copied for its product, to bring the heads
    of several sequences together, which rotary positions have done for Q and K already.
    """
    apart, turned = z.batch > 1, z.shape.positions == "rotary"
    queries = int(apart and not turned)
    return (queries + 2, 0) if z.kv != z.q else (2 * queries, int(apart))


class Backward:
    """Backward operations on a tape. Between them the residual's gradient (`z.x` bytes) is held."""

    def __init__(self, z: Sizes, tape: Tape) -> None:
        self.z, self.tape, self.width = z, tape, z.recipe.width("weight")
        self.trains = z.recipe.adapter == "none"
        self.naive, self.how = z.recipe.attention == "naive", z.recipe.checkpointing

    def block(self) -> None:
        if not self.z.mask:  # a mask would be the first thing that is needed
            self._begin("mlp", "down")
        own = self._branch(recompute=self.how == "full")
        self._mlp(own)
        self.norm("norm2", residual=True)
        own = self._branch()
        self._attention(own)
        self.norm("norm1", residual=True)
        if self.z.frozen:
            self._adapters()

    def _begin(self, part: str, last: str) -> None:
        """The gradient of a branch's output is there: its last matrix made that output."""
        self.tape.pre_backward(PATHS[last])
        self.tape.pre_backward(part)

    def _adapters(self) -> None:
        """Adapters, in one piece: what they kept goes, their gradients come."""
        z, t = self.z, self.tape
        t.drop("activations", adapters_kept(z))
        t.drop("weights", copies_kept(z, "none"))
        gradients = adapter_parameters(z.shape, z.recipe, z.layout.tp) * self.width
        t.hold("temporaries", gradients)
        self.keep_gradient(gradients)

    def _branch(self, recompute: bool = False) -> int:
        """The residual's gradient enters a branch: cast under autocast, masked under dropout. Returns its bytes
        where that made a tensor of its own."""
        z, t = self.z, self.tape
        own = 0
        if z.auto:
            t.hold("temporaries", z.y)
            own = z.y
        if recompute:
            self._recompute()
        if z.mask:
            t.hold("temporaries", z.y)
            t.drop("temporaries", own)
            t.drop("activations", z.mask)
            own = z.y
        return own

    def _recompute(self) -> None:
        """Full checkpointing: the block's forward again, up to the input of its last matrix product."""
        self.tape.drop("activations", self.z.x)  # the block's input, which is what norm 1 keeps
        forward(self.z, self.tape)

    def _mlp(self, own: int) -> None:
        z, t = self.z, self.tape
        self._begin("mlp", "down")
        self._linear("down", z.f, False, own, z.f)
        if not z.shape.gated_mlp:
            t.swap("temporaries", z.f, z.f)
            t.drop("activations", z.f)
            self._linear("up", z.y, True, z.f, z.y)
        else:
            t.hold("temporaries", z.f, z.f)
            t.drop("temporaries", z.f)
            t.drop("activations", 2 * z.f)
            self._linear("up", z.y, True, z.f, z.y if z.auto else 0)
            t.swap("temporaries", z.f, z.f)
            t.drop("activations", z.f)
            self._linear("gate", z.y, True, z.f, z.y)
            t.swap("temporaries", z.x, z.x, z.x)
        t.post_backward("mlp")

    def _attention(self, own: int) -> None:
        z, t = self.z, self.tape
        # the projection's input is the fused kernel's own output, and lives as long as that needs it
        separate = self.naive or self.how == "selective"
        self._begin("attention", "out")
        self._linear("out", z.q, False, own, z.q if separate else relaid(z))
        (self._naive_core if self.naive else self._fused_core)()
        if z.shape.positions == "rotary":
            t.passing("temporaries", 2 * z.q)
            t.drop("activations", tables(z))
        for name, gradient in (("v", z.kv), ("k", z.kv), ("q", z.q)):
            self._linear(name, z.y, True, gradient, z.y if z.auto or name == "q" else 0)
            if name != "v":
                t.swap("temporaries", z.x, z.x, z.x)
        t.post_backward("attention")

    def _fused_core(self) -> None:
        z, t = self.z, self.tape
        if self.how == "selective":
            t.hold("activations", z.q, z.lse)
        t.hold("temporaries", z.q, z.kv, z.kv)
        t.drop("temporaries", z.q)
        t.drop("activations", 2 * z.q, 2 * z.kv, z.lse)

    def _naive_core(self) -> None:
        z, t = self.z, self.tape
        drop = bool(z.recipe.dropout)
        before, after = _copied(z) if self.how == "selective" else (3, 0)
        values = 0 if (before, after) == (0, 0) else 1
        if self.how == "selective":
            naive_forward(z, t, before, after)
        t.swap("temporaries", z.q, z.q)
        t.hold("temporaries", z.q, z.scores)
        t.drop("temporaries", z.q)
        t.drop("activations", values * z.q, z.scores if drop else 0)
        if drop:
            t.swap("temporaries", z.scores, z.scores)
            t.drop("activations", z.scores // z.e)
        t.swap("temporaries", z.scores, z.scores)
        t.drop("activations", z.scores)
        t.swap("temporaries", z.scores, z.scores)
        t.drop("activations", z.seq**2)
        t.swap("temporaries", z.scores, z.scores)
        t.hold("temporaries", z.q, z.q)
        t.drop("temporaries", z.scores)
        t.drop("activations", (before + after - values) * z.q)
        if z.kv != z.q:
            t.swap("temporaries", z.kv, z.q)
            t.swap("temporaries", z.kv, z.q)
        if self.how == "selective":
            t.drop("activations", z.q, 2 * z.kv)

    def _linear(self, name: str, made: int, cast: bool, gradient: int, kept: int) -> None:
        rows, columns = slice_linears(self.z.shape, self.z.layout.tp)[name]
        bias = columns if self.z.shape.bias else 0
        unpacked = rows * columns * self.z.e if self.z.recipe.adapter == "qlora" else 0
        self.tape.pre_backward(PATHS[name])
        self.tape.hold("temporaries", unpacked)
        self.matrix(rows * columns, bias, made, cast, ("temporaries", gradient), kept, self.z.copies(name))
        self.tape.drop("temporaries", unpacked)
        self.tape.post_backward(PATHS[name])

    def matrix(self, n, bias, made, cast, gradient, kept, copy, keep=None) -> None:
        """Backward of a product with n weights. Makes the input's gradient, `made` bytes, and the weights'; frees
        the incoming `gradient` (kind, bytes), the `kept` input and the 16-bit weight `copy`.

        Under autocast weight gradients are made in 16 bits and then widened; so is the input's gradient where the
        input had been cast.
        """
        z, t = self.z, self.tape
        n, bias = (n, bias) if self.trains else (0, 0)
        t.hold("temporaries", made, n * z.e)
        early = kept if self.how == "full" else 0  # what was recomputed is held by nothing else, and goes first
        t.drop("activations", early)
        t.hold("temporaries", bias * z.e)
        t.drop("activations", kept - early)
        t.drop("weights", copy)
        t.drop(*gradient)
        if z.frozen:
            t.passing("temporaries", 2 * made)  # the adapter's part, and the sum
        if cast and z.auto:
            t.swap("temporaries", 2 * made, made)
        for weights in (n, bias):
            if z.auto:
                t.swap("temporaries", 4 * weights, 2 * weights)
            (keep or self.keep_gradient)(weights * self.width)

    def keep_gradient(self, n: int) -> None:
        """A finished weight gradient of n bytes: it becomes the gradient, or is added to the one that is there."""
        self.tape.drop("temporaries", n)
        if not self.z.keeps_gradients:
            self.tape.hold("gradients", n // self.z.layout.dp if self.z.layout.zero >= 2 else n)

    def add_later(self, n: int) -> None:
        """A tied head's gradient waits, as a temporary, for the token table's."""

    def norm(self, name: str, residual: bool) -> None:
        """Backward of a norm; then, with a residual, the two gradients are added."""
        z, t = self.z, self.tape
        t.pre_backward(name)
        weights = norm_parameters(z.shape) * self.width if self.trains else 0
        # the RMS norm's backward is written in fp32 steps, with two tensors at a time: torch_norm.py
        scratch = 0 if z.shape.norm == "layernorm" else z.wide32 * (1 if z.r == 4 else 2) + 4 * z.per_token
        t.hold("temporaries", z.x, weights, scratch)
        t.drop("temporaries", scratch)
        t.drop("activations", norm_kept(z))
        t.drop("temporaries", z.x)
        self.keep_gradient(weights)
        t.post_backward(name)
        if residual:
            t.swap("temporaries", z.x, z.x, z.x)
