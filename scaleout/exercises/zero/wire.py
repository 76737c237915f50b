"""Exercises of `zero` on what is sent: by stage and pass, with weights that are kept, and by torch's own optimizer."""

from __future__ import annotations

from scaleout.exercises.engine import Choice, Function, Mistake, Number, Option, Slip
from scaleout.exercises.zero.sizes import BYTES_EACH, NAME, PARAMETERS, SHAPE, states_of, total
from scaleout.spec.devices import GB
from scaleout.spec.slices import block_parameters

_STUB = '''\
def pieces(stage, passes, keep):
    """Pieces that each rank sends in a step.

    stage: 0 (DDP), 1, 2 or 3
    passes: forward and backward passes before the update
    keep: at stage 3, gathered weights stay to their backward
    """
    return ...
'''

_SOLUTION = """\
def pieces(stage, passes, keep):
    if stage < 2:
        return 2                          # added up first, sent once
    if stage == 2:
        return passes + 1                 # reduced in every pass
    return passes * (2 if keep else 3)
"""


def _pieces(stage, passes, keep, full=2, second=None, gathers=2, third=None, extra=0):
    """With something wrong in it: what stages 0 and 1 send, what stage 2 and 3, and after the update of 3."""
    if stage < 2:
        return full
    if stage == 2:
        return passes + 1 if second is None else second
    return (passes * (gathers if keep else 3) if third is None else third) + extra


PIECES = Function(
    key="pieces-sent",
    level=2,
    minutes=6,
    title="Pieces by stage and pass",
    prompt="Call it **one piece** when every weight or every gradient goes over the wire once: a reduce-scatter of all "
    "gradients, or an all-gather of all weights. An all-reduce is two. Write `pieces(stage, passes, keep)`: what each "
    "rank sends in a step of `passes` forward and backward passes, which add their gradients up before one update.\n\n"
    "- A rank never holds more than its stage allows, not even from pass to pass; and sends as little as that "
    "permits.\n"
    "- At stages 1 and 2 the new weights are gathered after the update.\n"
    "- At stage 3 weights are gathered in the forward, freed, and gathered again in the backward. With `keep` they "
    "stay from the forward of a pass to its backward, and are freed then.",
    hints=(
        "Which stages can hold a whole gradient until the last pass? Those add up first and send once.",
        "At stage 2 a rank holds whole gradients for a moment only. What becomes of them at the end of a pass?",
        "At stage 3 nothing whole outlives a pass: count one pass, and multiply.",
    ),
    solution="```python\n"
    f"{_SOLUTION}```\n\n"
    "With one pass that is 2, 2, 2 and 3. (Of stage 2 a blog says that it *uses reduce-scatter so adds some overhead "
    "compared to all-reduce*, roeybc.com/blog/zero. A reduce-scatter is half of an all-reduce.) **With many, stage 2 "
    "is a stage of its own:** 32 passes send 33 pieces, and stage 1 sends 2. *Why Stage2 need communicate gradients "
    "every steps?* asks DeepSpeed's issue 2252. Because a rank keeps its part of the sum and throws the rest away, is "
    "the answer there; and so `no_sync` is refused. A program may keep whole gradients and send once, and that is "
    "stage 1's memory. A pipeline has many passes in a step: DeepSeek-V3, on 16 pipeline stages, was trained at stage "
    "1 (arXiv 2412.19437, section 3.2).",
    function="pieces",
    stub=_STUB,
    reference=_pieces,
    cases=(
        (0, 1, False),
        (0, 8, False),
        (0, 3, False),
        (1, 1, False),
        (1, 4, False),
        (1, 32, False),
        (1, 6, False),
        (2, 1, False),
        (2, 4, False),
        (2, 32, False),
        (2, 7, False),
        (3, 1, False),
        (3, 1, True),
        (3, 8, False),
        (3, 8, True),
        (3, 5, False),
        (3, 5, True),
        (3, 3, True),
    ),
    mistakes=(
        Mistake(
            "stage-2-waits",
            lambda *case: _pieces(*case, second=2),
            "Your stage 2 sends once for all passes. To wait for the last pass it would have to hold whole "
            "gradients, and that is stage 1.",
        ),
        Mistake(
            "stage-1-hurries",
            lambda stage, passes, keep: _pieces(stage, passes, keep, full=passes + 1 if stage else 2),
            "Your stage 1 reduces in every pass. It holds whole gradients, and can add them up first.",
        ),
        Mistake(
            "every-pass",
            lambda stage, passes, keep: _pieces(stage, passes, keep, full=passes + 1 if stage else 2 * passes),
            "Stages 0 and 1 of yours send gradients in every pass. They hold whole gradients: add up, then send once.",
        ),
        Mistake(
            "once",
            lambda stage, passes, keep: _pieces(stage, 1, keep),
            "You count one pass. What a rank may not hold from pass to pass it sends in each.",
        ),
        Mistake(
            "all-times-passes",
            lambda stage, passes, keep: passes * _pieces(stage, 1, keep),
            "You multiplied everything by the passes. Whole gradients wait for the last one, and new weights are "
            "gathered once, after the update.",
        ),
        Mistake(
            "all-reduced",
            lambda stage, passes, keep: _pieces(stage, passes, keep, full=2 + (stage == 1), second=2 * passes + 1),
            "You all-reduce the gradients at stages 1 and 2. A rank needs the sum of its own part only: a "
            "reduce-scatter, one piece. (DeepSpeed does all-reduce there by default.)",
        ),
        Mistake(
            "stage-3-waits",
            lambda stage, passes, keep: _pieces(stage, passes, keep, third=passes * (1 if keep else 2) + 1),
            "At stage 3 you reduce the gradients once, after the last pass. Whole gradients would have to wait "
            "for that.",
        ),
        Mistake(
            "kept-all-step",
            lambda stage, passes, keep: _pieces(stage, passes, keep, third=passes + 1 if keep else None),
            "With keep you gather the weights once a step. They are freed in the backward, and the next pass "
            "gathers again.",
        ),
        Mistake(
            "kept-not-seen",
            lambda *case: _pieces(*case, gathers=3),
            "Your function does not look at keep. Weights that stayed need no second gather.",
        ),
        Mistake(
            "gathered-after",
            lambda *case: _pieces(*case, extra=1),
            "At stage 3 you gather the new weights after the update. Nobody needs them whole until the next "
            "forward, which gathers anyway.",
        ),
    ),
    right="2, 2, 2, 3 holds for one pass: what a rank may not keep, it sends each time.",
)

_RANKS = 16
_GATHERED = PARAMETERS * 2
_SHARDS, _STAGE_2 = total(3, _RANKS), total(2, _RANKS)
_KEPT_BYTES = _SHARDS + _GATHERED
_BLOCK = block_parameters(SHAPE) * 2

KEPT_TO_BACKWARD = Number(
    key="kept-to-backward",
    level=2,
    minutes=3,
    title="Stage 3 that keeps its weights",
    prompt=f"{NAME} ({PARAMETERS / 1e9:.2f} billion parameters, {BYTES_EACH} bytes each) trains at **stage 3** on "
    f"**{_RANKS}** GPUs. To save the second gather, gathered weights **stay** until their backward "
    "(`reshard_after_forward=False`). A gathered weight is a copy in bf16 beside the GPU's own shard. How much do the "
    "states take on a GPU at the **end of the forward**, gathered weights counted, activations not? The shard of the "
    "gradients has its place all the time.",
    hints=(
        "What does a GPU hold between two steps at stage 3?",
        "By the end of the forward every layer has been gathered, and none freed.",
    ),
    solution=f"The shards, 16 bytes × {PARAMETERS / 1e9:.2f} × 10^9 / {_RANKS} = {_SHARDS / GB:.2f} GB, and all "
    f"weights once more, 2 × {PARAMETERS / 1e9:.2f} = {_GATHERED / GB:.2f} GB: **{_KEPT_BYTES / GB:.1f} GB**. Stage 2 "
    f"holds {_STAGE_2 / GB:.1f} GB, and in a step of one pass both send two pieces. So stage 3 that keeps is, at its "
    f"fullest, stage 2 and a shard more, {states_of(3, _RANKS)['weights'] / GB:.1f} GB. What it gains: its gather "
    "goes block by block beside the forward, which hides it, where stage 2's stands between update and forward.\n\n"
    "Llama 3 was trained so, to spare the second gather (arXiv 2407.21783, section 3.3.2). There a GPU gathered only "
    "what tensor and pipeline parallelism had left it.",
    value=_KEPT_BYTES,
    unit="GB",
    units=("MB", "GB", "GiB"),
    slips=(
        Slip(
            "between-steps",
            _SHARDS,
            "Those are the shards alone, as between two steps. The gathered weights are whole, and still there.",
        ),
        Slip("stage-2", _STAGE_2, "That is stage 2. Here a GPU has its shard of the weights beside the whole ones."),
        Slip(
            "freed",
            _SHARDS + _BLOCK,
            "That has one block whole, as if each were freed after its forward. Here they stay.",
        ),
        Slip("copies", total(0, _RANKS), "That is DDP, everything whole. Only the weights are gathered."),
        Slip(
            "weights-alone", _GATHERED, "Those are the gathered weights alone. The shards of all states are there too."
        ),
        Slip(
            "gathered-fp32",
            _SHARDS + 2 * _GATHERED,
            "You gathered 4 bytes for each parameter: fp32, or gradients too. Weights travel in bf16.",
        ),
        Slip("stage-1", total(1, _RANKS), "That is stage 1, with whole gradients. Of the gradients there is a shard."),
        Slip(
            "all-gathered", _SHARDS + 16 * PARAMETERS, "That gathers the optimizer's state too. It is never gathered."
        ),
    ),
    right="As many bytes on the wire as stage 2, and a shard more in memory.",
)

WRAPPED = Choice(
    key="wrapped-optimizer",
    level=2,
    minutes=3,
    title="Stage 1 around DDP",
    prompt="A job on 8 GPUs trains in fp32 with DDP and AdamW. Somebody changes one line:\n\n"
    "```\noptimizer = ZeroRedundancyOptimizer(\n    model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4)\n"
    "```\n\nDDP stays, and all-reduces the gradients in the backward. After its update each rank **broadcasts** the "
    "weights that it owns. What does a rank now hold, and what does it send in a step of one pass? A piece is every "
    "weight or every gradient once; DDP alone sends 2.",
    hints=("Who still needs the whole gradient, and who still has it?", "What is sent that was not sent before?"),
    solution="**About an eighth of AdamW's state, whole gradients and weights, and 3 pieces.** DDP's all-reduce gives "
    "each rank the whole sum, of which it reads an eighth: that half of it is for nothing. Then the new weights come "
    "as a third piece. A reduce-scatter in place of the all-reduce would make it 2 again. torch's issue 69591 asks for "
    "just that: *Make DDP + Zero have the same communication volume as regular DDP*.\n\n*About* an eighth, because a "
    "rank owns whole tensors, dealt out by size. A token table that is a third of the model has one owner.",
    options=(
        Option(
            "state-3",
            "An eighth of the state; it sends 3 pieces",
            "Right: DDP's two, and the broadcasts of the new weights.",
            True,
        ),
        Option(
            "state-2",
            "An eighth of the state; it sends 2 pieces",
            "That is stage 1 with a reduce-scatter. DDP all-reduces: what is left for the new weights?",
        ),
        Option(
            "gradients-2",
            "An eighth of state and gradients; it sends 2",
            "DDP leaves every rank with whole gradients, in its buckets. And after its two pieces the new weights "
            "are sent.",
        ),
        Option(
            "gradients-3",
            "An eighth of state and gradients; it sends 3",
            "The pieces are right. But DDP leaves whole gradients on every rank: stage 2 is not an optimizer's "
            "to give.",
        ),
        Option(
            "all-2",
            "The whole state as before; it sends 2 pieces",
            "Each rank updates the tensors that it owns, and keeps moments for those alone.",
        ),
        Option(
            "state-9",
            "An eighth of the state; it sends 9 pieces",
            "Eight ranks broadcast, but each only what it owns: together every weight once.",
        ),
    ),
)

EXERCISES = (PIECES, KEPT_TO_BACKWARD, WRAPPED)
