"""The answers of `memory`'s exercises, against published figures, the memory model and arithmetic by hand."""

from functools import partial

import answers
import pytest

from scaleout import exercises
from scaleout.exercises.memory import steps
from scaleout.exercises.memory.activations import _growth
from scaleout.exercises.memory.sizes import per_parameter, states
from scaleout.memory.accounts import Layout, Recipe, account
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES
from scaleout.spec.transformer import PRESETS, total_parameters

GB = 10**9


value = partial(answers.value, "memory")
right = partial(answers.right, "memory")


def test_states_are_those_of_figure_1_of_zero():
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5B parameters, 120 GB; stage 1 on 64 GPUs, 31.4."""
    assert states("bf16-master", "adamw") * 7.5 == 120
    assert value("zero-1") / GB == pytest.approx(31.4, abs=0.05)


def test_bytes_of_a_parameter():
    assert states("bf16-master", "adamw") == states("fp32", "adamw") == states("autocast-bf16", "adamw") == 16
    assert states("bf16", "adamw") == 8
    assert states("fp32", "sgd") == 8
    assert per_parameter("bf16-master", "momentum") == {"weights": 2, "master": 4, "gradients": 2, "optimizer": 4}


def test_sizes_that_follow_from_one_line_of_arithmetic():
    assert value("weights-70b") == 70 * 10**9 * 2
    assert value("weights-70b-gib") / 2**30 == pytest.approx(130.385, abs=1e-3)
    assert value("adamw-bytes") == 2 + 4 + 4 + 2 + 2
    assert value("largest-on-141gb") == 143_771 * 2**20 / 16
    assert value("logits") == 6 * 8192 * 128_256 * 4


def test_zero_1_agrees_with_the_model_on_a_real_shape():
    shape = PRESETS["llama-2-7b"]
    states = account(shape, 1, 1, Recipe(precision="bf16-master"), Layout(dp=64, zero=1)).states
    per_parameter = value("zero-1") / 7.5e9
    assert sum(states.values()) / total_parameters(shape) == pytest.approx(per_parameter, rel=1e-6)


def test_lora_counts_what_the_papers_matrices_hold():
    """Rank 64 on the seven matrices of each of Llama 2 7B's 32 layers: r x (in + out) parameters each."""
    adapter = 32 * 64 * (4 * (4096 + 4096) + 3 * (4096 + 11_008))
    assert adapter == 159_907_840
    assert value("lora") == pytest.approx(6_738_415_616 * 2 + adapter * 16, rel=1e-9)


def test_the_whole_run_can_be_done_by_hand():
    shape, tokens = PRESETS["gpt2-xl"], 32 * 1024
    by_hand = 12 * 1_557_611_200 + 48 * tokens * 1600 * 4 + 3 * tokens * 50_257 * 4
    assert total_parameters(shape) == 1_557_611_200
    assert account(shape, 32, 1024, Recipe(checkpointing="full")).peak_moment == "loss"
    assert value("whole-run") == pytest.approx(by_hand, rel=0.02)  # as the prompt says
    assert answers.verdict("memory", "whole-run", f"{by_hand} bytes")["ok"]


def test_the_three_tensors_at_the_loss_are_named_as_they_are():
    """The fp32 logits are freed before backward; what it holds is made from them."""
    run, logits = (exercises.exercise("memory", key) for key in ("whole-run", "logits"))
    named = next(slip.message for slip in run.slips if slip.name == "logits-once")
    for text in (named, logits.solution):
        assert "the log-softmax, its gradient, and the" in text
        assert "fp32 logits" not in text


def test_the_right_choice_is_what_the_model_says():
    assert _growth("sdpa") == pytest.approx(2, abs=0.01)
    assert 2.2 < _growth("naive") < 4
    assert right("double-sequence") == "more-than-two"
    assert right("sixteen-eighteen-twenty") == "gradient-copies"


def test_the_right_option_is_not_always_in_the_same_place():
    places = set()
    for exercise in exercises.catalogue("memory"):
        if exercise.kind == "choice":
            shown = [option for option, _ in exercises.spec("memory", exercise.key)["options"]]
            assert sorted(shown) == sorted(option.name for option in exercise.options)
            places.add(shown.index(right(exercise.key)))
    assert len(places) > 1


def test_the_first_moment_that_does_not_fit_is_the_accounts():
    """In whole GB as the table has them, and with every byte; and no moment of the backward is fuller than the loss."""
    ends = {}
    for name, (model, batch, seq) in steps.JOBS.items():
        moments = account(PRESETS[model], batch, seq).moments
        second = {moment: sum(kinds.values()) for moment, kinds in moments.items()}
        first = {moment: size - moments[moment]["optimizer"] for moment, size in second.items()}
        first["optimizer"] = second["optimizer"]  # it makes the averages
        assert max(first, key=first.get) in ("loss", "optimizer") and max(second, key=second.get) in (
            "loss",
            "optimizer",
        )
        sizes = {
            "step 1, loss": first["loss"],
            "step 1, update": first["optimizer"],
            "step 2, loss": second["loss"],
            "step 2, update": second["optimizer"],
        }
        ends[name] = next((moment for moment, size in sizes.items() if size > steps.USABLE * 1e9), "no moment")
        assert ends[name] == steps.ends(steps.kinds(model, batch, seq))
    best = next(option.label for option in steps.FIRST_OUT.options if option.right)
    assert best == " · ".join(f"{name} {moment}" for name, moment in ends.items())
    assert len(set(ends.values())) == 4 and f"**{best}.**" in steps.FIRST_OUT.solution
    assert round(usable(DEVICES["h100-sxm"].memory_bytes) / 1e9) == steps.USABLE
    assert (
        max(
            len(line)
            for text in (steps.FIRST_OUT.prompt, steps.FIRST_OUT.solution)
            for block in text.split("```")[1::2]
            for line in block.splitlines()
        )
        <= 39
    ), "on a phone"
