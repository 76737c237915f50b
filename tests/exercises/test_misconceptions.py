"""The misconceptions that each rung is about: a slip, a known mistake or a wrong option of its exercises names each."""

import pytest

from scaleout import exercises

MISCONCEPTIONS = {
    "capstone": """
        speed-up other-base linear last-ratio nothing-hides eight whole-interval rename-early remove-first
        own-part-of-the-epoch batch-a-rank of-all-time resume straggler
    """,
    "collectives": """
        forgot-all-gather inverted bits bits-as-bytes gib algbw flat-ring next-part one-step-short
        dropped-rest starts-again tree-once
    """,
    "ddp": """
        half all-ranks no-overlap speed-up forward-hides rounded-down forward-order no-first-cap
        never-above-the-cap dropped-rest straggler-0
    """,
    "fsdp": """
        undivided whole-model forgot-root root-twice number-is-kept no-overlap works activations keep-all
    """,
    "memory": """
        forgot-optimizer forgot-master forgot-gradients bits fp32 summed-moments total divided-all both-four
        logits-once optimizer-moment gradients-at-the-loss gb-gib
    """,
    "mesh": """
        experts-divide context-multiplies tensor-multiplies first-fastest runs none as-before all-in-flight
        dp-alone stage-2 memory-ignored across-nodes least-memory c d b axes-swapped
    """,
    "precision": """
        at-once bf16-all twice sgd-twice all-of-it above-65504 not-in-a-row whole-step all saved doubled
        normal flushed ties-away lower-scale higher-rate all-scaled bf16-everywhere
    """,
    "recompute": """
        as-logged doubled all-trained activations all-in-flight rebuilt-for-each as-before mlp by-time
        largest all-blocks no-rebuild backward graph all-everywhere cheap-for-d
    """,
    "tensor": """
        rows-columns bias own-mask whole backward-only equal-blocks cut-heads even-split right as-before
        all-divided scores-undivided bits half g-f all
    """,
    "zero": """
        quarter-all all-halved adamw all-split weights-first no-floor stage-2-waits all-reduced
        gathered-after kept-not-seen stage-2 state-2 gradients-2 own-memory zero-elsewhere 3-3-3 1-2-1
        tail-lost each-tensor
    """,
}


@pytest.mark.parametrize("stem", MISCONCEPTIONS)
def test_the_misconceptions_of_a_rung_are_each_named(stem):
    named = set()
    for exercise in exercises.catalogue(stem):
        named |= {slip.name for slip in getattr(exercise, "slips", ())}
        named |= {mistake.name for mistake in getattr(exercise, "mistakes", ())}
        named |= {option.name for option in getattr(exercise, "options", ()) if not option.right}
    assert named >= set(MISCONCEPTIONS[stem].split())
