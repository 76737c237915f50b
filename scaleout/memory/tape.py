"""A ledger of allocated bytes, by kind, with the peak of each moment of a step, and one that writes down events."""

from __future__ import annotations

from collections.abc import Hashable

KINDS = ("weights", "master", "gradients", "optimizer", "activations", "logits", "temporaries")

# In the order of a step: the end of the forward pass, the backward of the cross-entropy, of the output head with
# the last norm, of the blocks, of the token table; then the optimizer's update.
MOMENTS = ("forward", "loss", "head", "block", "embedding", "optimizer")


class Tape:
    """Bytes allocated now by kind, and for every moment of the step those at its peak."""

    inside = ""  # the module that the names of the four events below begin at

    def __init__(self, kinds: tuple[str, ...] = KINDS) -> None:
        self.held = dict.fromkeys(kinds, 0)
        self.total = 0
        self.moment = MOMENTS[0]
        self.fullest: dict[str, tuple[int, dict[str, int]]] = {}

    def enter(self, moment: str) -> None:
        """Begin this moment of the step."""
        self.moment = moment
        self._look()

    def hold(self, kind: str, *amounts: int) -> None:
        """Allocate these amounts, which stay side by side."""
        n = sum(amounts)
        self.held[kind] += n
        self.total += n
        self._look()

    def drop(self, kind: str, *amounts: int) -> None:
        """Free these amounts."""
        n = sum(amounts)
        self.held[kind] -= n
        self.total -= n

    def swap(self, kind: str, allocated: int, *freed: int) -> None:
        """Allocate one tensor that is computed from others of the same kind, and then free those."""
        self.hold(kind, allocated)
        self.drop(kind, *freed)

    def passing(self, kind: str, *amounts: int) -> None:
        """Allocate these amounts, and free them again."""
        self.hold(kind, *amounts)
        self.drop(kind, *amounts)

    def pre_forward(self, module: str) -> None:
        """The forward of a module begins, named as the model names it below `inside`. Nothing happens here: a tape
        of sharded weights gathers them (fsdp_tape.py)."""

    def post_forward(self, module: str) -> None:
        """The forward of a module has ended."""

    def pre_backward(self, module: str) -> None:
        """The gradient of a module's output has been computed."""

    def post_backward(self, module: str) -> None:
        """The gradient of a module's input has been computed."""

    def _look(self) -> None:
        if self.moment not in self.fullest or self.total > self.fullest[self.moment][0]:
            self.fullest[self.moment] = (self.total, dict(self.held))


Event = tuple[str, str, int]  # what happens, to which kind of bytes or module, how many bytes


class Recorder(Tape):
    """A tape that writes down what happens, in parts."""

    def __init__(self) -> None:
        self.parts: dict[Hashable, list[Event]] = {}
        self.mark("begin")

    def mark(self, part: Hashable) -> None:
        """What follows belongs to this part."""
        self.events = self.parts.setdefault(part, [])

    def hold(self, kind: str, *amounts: int) -> None:
        self.events.append(("hold", kind, sum(amounts)))

    def drop(self, kind: str, *amounts: int) -> None:
        self.events.append(("drop", kind, sum(amounts)))

    def gradient(self, size: int) -> None:
        """A weight's gradient is complete, and no longer a temporary."""
        self.events.append(("gradient", "", size))

    def enter(self, moment: str) -> None:
        self.events.append(("enter", moment, 0))

    def pre_forward(self, module: str) -> None:
        self.events.append(("pre_forward", module, 0))

    def post_forward(self, module: str) -> None:
        self.events.append(("post_forward", module, 0))

    def pre_backward(self, module: str) -> None:
        self.events.append(("pre_backward", module, 0))

    def post_backward(self, module: str) -> None:
        self.events.append(("post_backward", module, 0))
