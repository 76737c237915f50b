"""Exercises of `fsdp` on wrapping: what is unsharded at once, and which wrapping to choose."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Number, Option, Slip
from scaleout.exercises.fsdp.sizes import (
    BLOCK,
    BLOCKS,
    GIB,
    LLAMA,
    NAME,
    OTHER_NAME,
    OTHER_PARAMETERS,
    ROOT,
    gathered_bytes,
    memory,
    wrapped,
)
from scaleout.spec.devices import GB
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.transformer import PRESETS, total_parameters

_BYTES = ("MB", "GB", "TB", "GiB")
_N, _CALLED = OTHER_PARAMETERS, OTHER_NAME
_ROOT, _BLOCK = wrapped("block", LLAMA)[:2]
_PAIR = gathered_bytes(_ROOT, "bf16") + 2 * gathered_bytes(_BLOCK, "bf16")

GATHERED = Number(
    key="gathered-peak",
    level=2,
    minutes=4,
    short=True,
    title="What is unsharded at once",
    prompt=f"{_CALLED} is wrapped **by block**: {LLAMA.layers} units of {_BLOCK.parameters / 1e6:.0f} million "
    f"parameters each, and a root unit of {_ROOT.parameters / 1e9:.2f} billion (embedding, last norm, head). "
    "`param_dtype` is **bf16**. The root stays unsharded, every other unit is resharded after use, and **one** unit is "
    "prefetched. How much memory do unsharded parameters take on one rank **while a block in the middle of the forward "
    "computes**? Count the block that is being prefetched. Leave out all other communication buffers.",
    hints=(
        "Which units are unsharded, or being unsharded, at that moment?",
        "The root, the block that computes, and the block that is prefetched.",
    ),
    solution=f"The root and two blocks: ({_ROOT.parameters / 1e9:.3f} + 2 × {_BLOCK.parameters / 1e9:.3f}) × 10^9 × 2 "
    f"bytes = **{_PAIR / GIB:.2f} GiB**. With the model as one unit, FSDP would unshard {_N * 2 / GIB:.1f} GiB at "
    f"once. The root alone takes {gathered_bytes(_ROOT, 'bf16') / GIB:.2f} GiB. In {NAME}, which has a vocabulary of "
    f"128,256, it takes {gathered_bytes(ROOT, 'bf16') / GIB:.2f} GiB, so there it is worth making the embedding and "
    "the head units of their own.\n\nOn a GPU, `fully_shard` also keeps the output buffer of an all-gather until the "
    "next one has been copied out. In the forward that is one block more, which the widget above shows as *buffers*.",
    value=_PAIR,
    unit="GiB",
    units=_BYTES,
    slips=(
        Slip(
            "whole-model",
            _N * 2,
            "That is the whole model, which FSDP unshards at once when the model is one unit. Wrapped by block, each "
            "block is resharded when it has computed.",
        ),
        Slip(
            "forgot-root",
            2 * gathered_bytes(_BLOCK, "bf16"),
            "The root is missing. It is unsharded first and stays unsharded, because the backward begins with it.",
        ),
        Slip(
            "no-prefetch",
            gathered_bytes(_ROOT, "bf16") + gathered_bytes(_BLOCK, "bf16"),
            "A block is missing. The all-gather of the prefetched block runs while another block computes, so its "
            "memory is already allocated.",
        ),
        Slip(
            "fp32",
            2 * _PAIR,
            "That is fp32. The stored shards are in fp32, but parameters are all-gathered in param_dtype.",
        ),
        Slip(
            "one-block",
            gathered_bytes(_BLOCK, "bf16"),
            "That is one block. More than that is unsharded, or being unsharded, while it computes.",
        ),
        Slip(
            "three-blocks",
            _PAIR + gathered_bytes(_BLOCK, "bf16"),
            "That counts another block: either the block before, which has been resharded, or a communication buffer, "
            "which was to be left out.",
        ),
    ),
    right="More ranks do not change this number: an unsharded unit has its full size on every rank.",
)

_LAYERS = len(wrapped("layer"))
_MEDIUM = PRESETS["gpt2-medium"]
_FINE, _COARSE = (units(_MEDIUM, Sharding(wrap=wrap)) for wrap in ("layer", "block"))
_SMALL_BLOCK = _COARSE[-1].parameters

LAYER_BY_LAYER = Choice(
    key="which-wrapping",
    level=1,
    minutes=3,
    short=True,
    title="Every matrix a unit",
    prompt=f"Somebody wraps GPT-2 medium so that every matrix is a unit: {len(_FINE)} units with the root. It runs on "
    "8 nodes of 8 H100s with InfiniBand, with two sequences of 1,024 tokens per GPU. The GPUs wait for more than a "
    "quarter of the step. The trace shows hundreds of all-gathers of 2 or 8 MB, which reach at most an eighth of the "
    "link's bandwidth. Each GPU uses 3 of its 68 usable GiB. What do you change first?",
    hints=("Each all-gather has a fixed start-up time, whatever its size.", "65 GiB are free. Where do they help?"),
    solution=f"**Wrap by block.** That makes {len(_COARSE)} units instead of {len(_FINE)}: the same bytes in a sixth "
    f"of the all-gathers, each of {2 * _SMALL_BLOCK / 1e6:.0f} MB in bf16, and a whole block of compute behind which "
    "the next all-gather can hide. By the book's model (for `torch.compile`) the GPUs then wait for 2.2% of the step "
    "instead of 28%. The price is more unsharded memory, which is not scarce here.\n\nOne block per unit is the usual "
    "choice: large enough for the link, small enough for memory. Wrap finer only when a block does not fit, and wrap "
    "several blocks together when the all-gathers are too small.",
    options=(
        Option(
            "block",
            "Make each block a unit",
            "Right: the all-gathers are fewer and larger, and each has more compute to hide behind.",
            True,
        ),
        Option(
            "model",
            "Make the model one unit",
            f"One all-gather of {total_parameters(_MEDIUM) * 2 / GB:.1f} GB would use the link well, but nothing can "
            "compute until all of it has arrived: there is no next unit to prefetch meanwhile. And the whole model is "
            "then unsharded at once.",
        ),
        Option(
            "finer",
            "Nothing: finer saves memory",
            "It does, but memory is not scarce here: 65 GiB are free. This wrapping pays for that memory with latency.",
        ),
        Option(
            "offload",
            "Offload shards to the CPU",
            "That frees memory, which is not scarce, and adds a copy over PCIe before every one of these all-gathers.",
        ),
        Option(
            "ranks",
            "Use more nodes for the job",
            "The shards get smaller, and so does every step of each ring: more latency for the same bytes.",
        ),
    ),
)

_LARGE = wrapped("layer")
_TABLE = max(unit.parameters for unit in _LARGE)


def _middle(**sharding) -> int:
    """Most bytes that a rank uses while a block in the middle is in its backward."""
    return max(
        moment.bytes
        for moment in memory(**sharding).moments
        if (moment.phase, moment.unit) == ("backward", f"blocks.{BLOCKS // 2}")
    )


_SPARED = _middle(wrap="block") - _middle(wrap="size", least_parameters=BLOCK.parameters)

HUGE_ROOT = Choice(
    key="huge-root",
    level=2,
    title="What is left in the root",
    prompt=f"Wrapped by block, {NAME} has a root unit of {ROOT.parameters / 1e9:.2f} billion parameters (embedding, "
    f"last norm, head), against {BLOCK.parameters / 1e9:.2f} billion per block. The root stays unsharded through "
    "forward and backward. Each GPU is **1.5 GiB** short at its peak, which is in the middle of the blocks. Which "
    "change makes it fit at the least cost?",
    hints=(
        "What does the root hold while a block computes, and which module needs it then?",
        f"The embedding alone has {_TABLE / 1e6:.0f} million parameters, 2 bytes each in bf16.",
    ),
    solution="**Make the embedding and the head units of their own, next to the blocks.** Neither is needed while the "
    f"blocks compute, so {2 * _TABLE * 2 / GIB:.1f} GiB in bf16 are freed. The head's gradient is reduced at once and "
    "does not wait for the rest of the root. The book's memory model finds a saving of "
    f"{_SPARED / GIB:.1f} GiB in the middle of the backward. It costs three more all-gathers per step: two for the "
    "embedding and one for the head. The head is used last in the forward and first in the backward, so keep it "
    "unsharded in between (`reshard_after_forward=False`).\n\nWrapping by size can do the same: every module above a "
    f"threshold becomes a unit. With a threshold of {BLOCK.parameters / 1e6:.0f} million parameters these are the "
    "blocks, the embedding and the head.",
    options=(
        Option(
            "table-and-head",
            "Make embedding and head units of their own",
            f"Right: {2 * _TABLE * 2 / GIB:.1f} GiB that no module needs while the blocks compute.",
            True,
        ),
        Option(
            "layer",
            "Make every single matrix a unit of its own",
            f"That shrinks the root as well, but it makes {_LAYERS - 3} units out of {BLOCKS} blocks, with as many "
            "small messages. Two more units are enough.",
        ),
        Option(
            "keep",
            "Set reshard_after_forward=False on blocks",
            f"Then the blocks stay unsharded too, {BLOCKS * gathered_bytes(BLOCK, 'bf16') / GIB:.0f} GiB of them: this "
            "saves all-gathers and costs memory.",
        ),
        Option(
            "ranks",
            "Use more ranks, for a smaller root on each",
            "The shards become smaller. The unsharded root does not: it is whole on every rank.",
        ),
        Option(
            "model",
            "Make the whole model one single large unit",
            "Then everything is in the root, and stays unsharded from the start of the forward to the end of the "
            "backward.",
        ),
    ),
)

EXERCISES = (GATHERED, LAYER_BY_LAYER, HUGE_ROOT)
