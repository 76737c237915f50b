"""The backward of one transformer block, as allocations and frees. `activations` has what each operation saved."""

from __future__ import annotations

from collections.abc import Callable

from scaleout.memory.activations import Sizes, adapters_kept, copies_kept, norm_kept, qk_norm_kept, relaid, tables
from scaleout.memory.forward import PATHS, copied, forward, naive_forward
from scaleout.memory.states import adapter_parameters
from scaleout.memory.tape import Tape
from scaleout.spec.transformer import norm_parameters, vector_parameters


class Backward:
    """Backward operations on a tape. Between them the residual's gradient (`z.x` bytes) stays allocated."""

    def __init__(self, z: Sizes, tape: Tape) -> None:
        self.z, self.tape, self.width = z, tape, z.recipe.width("weight")
        self.trains = z.recipe.adapter == "none"
        self.accumulates = z.megatron and z.recipe.main_gradients == "instead"  # weight gradients, inside the matmul
        self.naive, self.checkpointing = z.recipe.attention == "naive", z.recipe.checkpointing

    def block(self) -> None:
        if not self.z.mask:  # a mask would be the first thing that is needed
            self._begin("mlp", "down")
        branch_gradient = self._branch(recompute=self.checkpointing == "full")
        self._mlp(branch_gradient)
        self.norm("norm2", residual=True)
        branch_gradient = self._branch()
        self._attention(branch_gradient)
        self.norm("norm1", residual=True)
        if self.z.frozen:
            self._adapters()

    def _begin(self, part: str, last: str) -> None:
        """The gradient of a branch's output is there: its last matrix made that output."""
        self.tape.pre_backward(PATHS[last])
        self.tape.pre_backward(part)

    def _adapters(self) -> None:
        """The backward of the adapters in one piece: their activations are freed, their gradients allocated."""
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
        branch_gradient = 0
        if z.auto:
            t.hold("temporaries", z.y)
            branch_gradient = z.y
        if recompute:
            self._recompute()
        if z.mask:
            t.hold("temporaries", z.y)
            t.drop("temporaries", branch_gradient)
            t.drop("activations", z.mask)
            branch_gradient = z.y
        if z.gathers:
            t.hold("temporaries", z.read)
            t.drop("temporaries", branch_gradient)
            branch_gradient = z.read
        return branch_gradient

    def gather(self) -> None:
        """Gather the input of a column-parallel matrix once more, where it was not saved."""
        self.tape.hold("temporaries", self.z.gathered if self.z.regathers else 0)

    def scatter(self) -> None:
        """Reduce-scatter that input's gradient, a partial sum on every rank: each rank keeps its tokens of the sum."""
        z, t = self.z, self.tape
        if z.regathers:
            t.drop("temporaries", z.gathered)
            t.swap("temporaries", z.y, z.gathered)
            if z.auto:
                t.swap("temporaries", z.x, z.y)
        elif z.gathers:
            t.swap("temporaries", z.x, z.gathered)

    def _recompute(self) -> None:
        """Full checkpointing: the block's forward again, up to the input of its last matrix product, or, with dropout,
        to the mask behind it."""
        self.tape.drop("activations", self.z.x)  # the block's input, which is what norm 1 keeps
        forward(self.z, self.tape)
        if self.z.mask:
            self.tape.passing("activations", self.z.y, self.z.y)

    def _mlp(self, branch_gradient: int) -> None:
        z, t = self.z, self.tape
        self._begin("mlp", "down")
        self._linear("down", z.f, False, branch_gradient, z.f)
        if not z.shape.gated_mlp:
            t.swap("temporaries", z.f, z.f)
            t.drop("activations", z.activation_kept)
            self.gather()
            self._column("up", z.f, first=True, last=True)
        elif z.megatron:
            t.swap("temporaries", 2 * z.f, z.f)
            t.drop("activations", 2 * z.f)
            self.gather()
            self._column("up", 2 * z.f, first=True, last=True)
        else:
            t.hold("temporaries", z.f, z.f)
            t.drop("temporaries", z.f)
            t.drop("activations", z.activation_kept - z.f)
            self.gather()
            self._column("up", z.f, first=True)
            t.swap("temporaries", z.f, z.f)
            t.drop("activations", z.f)
            self._column("gate", z.f, last=True)
        self.scatter()
        t.post_backward("mlp")

    def _attention(self, branch_gradient: int) -> None:
        z, t = self.z, self.tape
        # the projection's input is the fused kernel's own output, and lives as long as that needs it
        separate = self.naive or self.checkpointing == "selective"
        self._begin("attention", "out")
        self._linear("out", z.q, False, branch_gradient, z.q if separate else relaid(z))
        (self._naive_core if self.naive else self._fused_core)()
        if z.shape.positions == "rotary":
            t.passing("temporaries", 2 * z.q)
            t.drop("activations", tables(z))
        t.drop("activations", qk_norm_kept(z))
        self.gather()
        for name, gradient in (("v", z.kv), ("k", z.kv), ("q", z.q)):
            self._column(name, gradient, first=name == "v", last=name == "q")
        self.scatter()
        t.post_backward("attention")

    def _column(self, name: str, gradient: int, first: bool = False, last: bool = False) -> None:
        """Backward of matrices that read the same input: the gradients of the input are summed, and the last matrix
        frees the saved input, of which autocast has one copy per matrix."""
        z = self.z
        input_kept = z.read_kept if last or z.input_copies[name in ("up", "gate")] > 1 else 0
        self._linear(name, z.read, True, gradient, input_kept)
        if not first:
            input_gradient = z.gathered or z.x
            self.tape.swap("temporaries", input_gradient, input_gradient, input_gradient)

    def _fused_core(self) -> None:
        z, t = self.z, self.tape
        if self.checkpointing == "selective":
            t.hold("activations", z.q, z.lse)
        t.hold("temporaries", z.q, z.kv, z.kv)
        t.drop("temporaries", z.q)
        t.drop("activations", 2 * z.q, 2 * z.kv, z.lse)

    def _naive_core(self) -> None:
        z, t = self.z, self.tape
        drop = bool(z.recipe.dropout)
        copies_before, copies_after = copied(z) if self.checkpointing == "selective" else (3, 0)
        values = 0 if (copies_before, copies_after) == (0, 0) else 1
        if self.checkpointing == "selective":
            naive_forward(z, t, copies_before, copies_after)
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
        t.drop("activations", (copies_before + copies_after - values) * z.q)
        if z.kv != z.q:
            t.swap("temporaries", z.kv, z.q)
            t.swap("temporaries", z.kv, z.q)
        if self.checkpointing == "selective":
            t.drop("activations", z.q, 2 * z.kv)

    def _linear(self, name: str, input_gradient: int, cast: bool, gradient: int, input_kept: int) -> None:
        one = self.z.megatron and self.z.shape.gated_mlp and name == "up"
        names = ("gate", "up") if one else (name,)  # of Megatron-LM one matrix
        rows, columns = self.z.matrices[name][0], sum(self.z.matrices[part][1] for part in names)
        bias = columns if self.z.shape.has_bias(name) else 0
        unpacked = rows * columns * self.z.e if self.z.recipe.adapter == "qlora" else 0
        for part in names:
            self.tape.pre_backward(PATHS[part])
        self.tape.hold("temporaries", unpacked)
        self.matrix(
            0 if self.accumulates else rows * columns,
            bias,
            input_gradient,
            cast,
            ("temporaries", gradient),
            input_kept,
            self.z.copies(*names),
        )
        self.tape.drop("temporaries", unpacked)
        for part in names:
            self.tape.post_backward(PATHS[part])

    def matrix(
        self,
        n: int,
        bias: int,
        input_gradient: int,
        cast: bool,
        gradient: tuple[str, int],
        input_kept: int,
        copy: int,
        keep: Callable[[int], None] | None = None,
    ) -> None:
        """Backward of a matrix multiplication with n weights, in bytes. Makes the `input_gradient` and the weights'
        gradient; frees the incoming `gradient` (kind, bytes), the saved input and the 16-bit weight `copy`.

        Under autocast weight gradients are made in 16 bits and then widened; so is the input's gradient where the
        input had been cast.
        """
        z, t = self.z, self.tape
        n, bias = (n, bias) if self.trains else (0, 0)
        t.hold("temporaries", input_gradient, n * z.e)
        # what was recomputed is referenced by nothing else, and is freed first
        freed_first = input_kept if self.checkpointing == "full" else 0
        t.drop("activations", freed_first)
        t.hold("temporaries", bias * z.e)
        t.drop("activations", input_kept - freed_first)
        t.drop("weights", copy)
        t.drop(*gradient)
        if z.frozen:
            t.passing("temporaries", 2 * input_gradient)  # the adapter's part, and the sum
        if cast and z.auto and not z.regathers:
            t.swap("temporaries", 2 * input_gradient, input_gradient)
        for weights in (n, bias):
            if z.auto:
                t.swap("temporaries", 4 * weights, 2 * weights)
            (keep or self.keep_gradient)(weights * self.width)

    def keep_gradient(self, n: int) -> None:
        """A finished weight gradient of n bytes: it becomes the gradient, or is added to the accumulated one."""
        self.tape.drop("temporaries", n)
        self.keep(n)

    def keep(self, n: int) -> None:
        """n bytes that were a temporary are a gradient, unless they have been added to the one there was."""
        if self.z.recipe.gradients == "released":
            self.tape.passing("gradients", n)
        elif not self.z.keeps_gradients:
            self.tape.hold("gradients", n // self.z.layout.dp if self.z.layout.zero >= 2 else n)

    def add_later(self, n: int) -> None:
        """A tied head's gradient waits, as a temporary, for the token table's."""

    def norm(self, name: str, residual: bool) -> None:
        """Backward of a norm; then, with a residual, the two gradients are added."""
        z, t = self.z, self.tape
        t.pre_backward(name)
        n = norm_parameters(z.shape)
        others = vector_parameters(z.shape, z.layout.tp) - 2 * n if name == "norm1" else 0  # a variant's other norms
        weights = (n + others) * self.width if self.trains else 0
        # the RMS norm's backward is written in fp32 steps, with two tensors at a time: parallel/norm.py
        one_kernel = z.shape.norm == "layernorm" or z.megatron
        scratch = 0 if one_kernel else z.wide32 * (1 if z.r == 4 else 2) + 4 * z.per_token
        t.hold("temporaries", z.x, weights, scratch)
        t.drop("temporaries", scratch)
        t.drop("activations", norm_kept(z))
        t.drop("temporaries", z.x)
        self.keep_gradient(weights)
        t.post_backward(name)
        if residual:
            t.swap("temporaries", z.x, z.x, z.x)
