"""DeepSpeed as one more implementation of ZeRO, called directly. An optional package: `pip install deepspeed`.

Tried: DeepSpeed 0.19.8 on CPUs over gloo. Its first start compiles an operator for CPUs: two minutes, and a C++
compiler. What it does unless told otherwise, and is told otherwise here: it clips gradients to a norm of 1, and in
stage 3 it keeps tensors of fewer than 100,000 numbers whole.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings

import torch
from torch.profiler import record_function as phase

from scaleout.parallel import shard
from scaleout.parallel.zero_ways import DEEPSPEED, ZeroWay
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import total_parameters


def refuse(via: str, passes: int = 1) -> None:
    """ValueError, in one line, where the package is missing, or is asked for what this way does not do."""
    if via in DEEPSPEED and importlib.util.find_spec("deepspeed") is None:
        raise ValueError(
            f"--via {via} needs the package deepspeed, which is not installed here: pip install "
            f"deepspeed, or use --via stage-{via[-1]}, the same by hand"
        )
    if via in DEEPSPEED and passes > 1:
        raise ValueError(f"--via {via} is shown with one pass a step: leave out --accumulation")


class DeepSpeedWay(ZeroWay):
    """A model under `deepspeed.initialize`, with torch's AdamW. via: "deepspeed-1", "deepspeed-2" or "deepspeed-3"."""

    names = DEEPSPEED

    def build(self, recipe: Recipe, rate: float) -> None:
        """Hand model and optimizer to DeepSpeed."""
        refuse(self.via)
        if self.s.device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when it is imported
        import deepspeed  # seconds: only where it is asked for

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", message=".*is deprecated. Please use", category=FutureWarning)
        shard.mesh(self.s, self.sharding)  # a group, of one process too
        adamw = torch.optim.AdamW(self.model.parameters(), lr=rate, foreach=True)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": self.clip or 0.0,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": self.stage, "stage3_param_persistence_threshold": 0},
        }
        self.call, self.wrapped, *_ = deepspeed.initialize(
            model=self.model, optimizer=adamw, config=config, dist_init_required=False
        )
        self.optimizer = adamw  # whose parameters are DeepSpeed's flat shards from now on

    @property
    def stage(self) -> int:
        return int(self.via[-1])

    def one_pass(self, batch, passes: int = 1, last: bool = True):
        """Forward and backward by the engine; the loss, a tensor."""
        with phase("forward"):
            loss = self.call(*batch)
        with phase("backward"):
            self.call.backward(loss)
        return loss.detach()

    def make_update(self) -> None:
        """The engine clips, steps and forgets the gradients."""
        self.call.step()

    def whole(self, gradients: bool = False) -> dict[str, torch.Tensor]:
        """{name: full tensor}, copies, of the parameters or their gradients. Collective."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad

        read = safe_get_full_grad if gradients else safe_get_full_fp32_param
        return {name: read(p).detach().clone() for name, p in self.model.named_parameters()}

    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        """{state of the optimizer: {name of a parameter: full tensor}}, copies. Collective."""
        from deepspeed.utils import safe_get_full_optimizer_state

        return {
            kind: {
                name: safe_get_full_optimizer_state(p, kind).detach().clone()
                for name, p in self.model.named_parameters()
            }
            for kind in ("exp_avg", "exp_avg_sq")
        }

    def stored(self) -> dict[str, int]:
        """Bytes of this rank now: "weights", and each state of the optimizer. DeepSpeed keeps gradients in buffers of
        its own, which are not counted; nor are its flat copies of the weights that it steps."""
        states = self.optimizer.state.values()
        return {"weights": sum(getattr(p, "ds_tensor", p).nbytes for p in self.model.parameters())} | {
            kind: sum(state[kind].nbytes for state in states if kind in state) for kind in ("exp_avg", "exp_avg_sq")
        }

    @property
    def built(self) -> str:
        """What was built, in words."""
        stage, all_bytes = self.call.zero_optimization_stage(), 4 * total_parameters(self.shape)
        return (
            f"{type(self.call).__name__}, {type(self.wrapped).__name__} of stage {stage} on {self.s.world} rank(s): "
            f"{self.stored()['weights']:,} of {all_bytes:,} bytes of weights on this rank"
        )

    def assert_built(self) -> None:
        """RuntimeError where DeepSpeed has not made this stage."""
        if self.call.zero_optimization_stage() != self.stage or "ZeroOptimizer" not in type(self.wrapped).__name__:
            raise RuntimeError(f"asked for {self.via}, and got: {self.built}")
        weights, all_bytes = self.stored()["weights"], 4 * total_parameters(self.shape)
        if (weights < all_bytes) != (self.stage == 3 and self.s.world > 1):
            raise RuntimeError(f"asked for {self.via}, and this rank has {weights:,} of {all_bytes:,} bytes of weights")
