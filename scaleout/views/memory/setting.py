"""What a reader chose in the view `memory`, and what follows: the account of a step, moment by moment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from scaleout.draw.kinds import apart
from scaleout.memory.accounts import Account, account
from scaleout.memory.states import rank_parameters
from scaleout.memory.tape import MOMENTS
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.views import base

FULLEST = len(MOMENTS) + 1  # place on the control, after the moments themselves: the one that the sentence is of


@dataclass(frozen=True)
class Look(base.Setting):
    """What is shown of it: a moment, and whether bytes are shown in GiB."""

    moment: int
    gib: bool

    @property
    def giga(self) -> int:
        return 2**30 if self.gib else 10**9


@dataclass(frozen=True)
class Setting(base.TextSetting):
    """What one GPU trains. gpus: data parallel; seq, tp: at most, for a model has its positions and its heads."""

    optimizer: str
    checkpointing: str
    batch: int
    gpus: int
    zero: int
    tp: int
    precision: str
    attention: str
    loss: str
    adapter: str

    @property
    def degree(self) -> int:
        """Tensor parallelism: the largest degree up to the one asked for that divides the heads."""
        return math.gcd(self.tp, self.shape.heads)

    @property
    def gathers(self) -> bool:
        """Whether weights are split, and gathered to compute with."""
        return self.zero == 3 and self.gpus > 1

    @property
    def parameters(self) -> int:
        """Parameters on one GPU, before ZeRO."""
        return rank_parameters(self.shape, Layout(tp=self.degree))

    @cached_property
    def account(self) -> Account:
        recipe = Recipe(
            precision=self.precision,
            optimizer=self.optimizer,
            attention=self.attention,
            checkpointing=self.checkpointing,
            adapter=self.adapter,
            loss=self.loss,
            buckets="beside" if self.gpus > 1 else "none",
        )
        layout = Layout(dp=self.gpus, tp=self.degree, zero=self.zero)
        return account(self.shape, self.batch, self.tokens, recipe, layout)

    @property
    def peak_bytes(self) -> int:
        return self.account.peak_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.usable

    # --- moments -----------------------------------------------------------------------------------------------------

    @cached_property
    def moments(self) -> dict[str, dict[str, int]]:
        """Bytes by layer of the picture, copies of weights apart from the weights, at rest and at every moment."""
        return {moment: apart(self.account, moment) for moment in ("rest", *self.account.moments)}

    @property
    def peak_number(self) -> int:
        """Of the fullest moment."""
        return [*self.moments].index(self.account.peak_moment)

    def number(self, look: Look) -> int:
        """Of the moment that is shown."""
        return self.peak_number if look.moment == FULLEST else look.moment
