"""The four states of the first page: what they hold, what they move, and what is said of them."""

import pytest

from scaleout import views
from scaleout.memory.accounts import account
from scaleout.spec.transformer import total_parameters
from scaleout.views import front

STATES = [(states, activations) for states in ("copy", "split") for activations in ("keep", "recompute")]
N = total_parameters(front.MODEL)


def drawn(states, activations):
    return views.render("front", {"states": states, "activations": activations})


def values(states, activations):
    return drawn(states, activations)["values"]


def test_neither_decision_alone_is_enough_and_both_are():
    assert [values(*state)["fits"] for state in STATES] == [False, False, False, True]
    held = [round(values(*state)["held_gb"], 1) for state in STATES]
    assert held == [199.3, 175.2, 102.6, 21.9]
    assert [values(*state)["moment"] for state in STATES] == ["loss", "optimizer", "loss", "loss"]


@pytest.mark.parametrize("state", STATES)
def test_layers_add_up_to_the_account(state):
    found = values(*state)
    assert sum(found[f"{key}_gb"] for key, *_ in front.LAYERS) == pytest.approx(found["held_gb"], rel=1e-12)


def test_copying_holds_the_papers_bytes_and_splitting_an_eighth_of_them():
    """ZeRO's 2 + 2 + 12 bytes of each parameter (arXiv 1910.02054, section 3.1), before the update's scratch."""
    copy, split = (values(states, "keep") for states in ("copy", "split"))
    copied = sum(copy[f"{key}_gb"] for key in ("adam", "weights", "gradients")) * 1e9
    assert copied == pytest.approx(16 * N, rel=1e-6)
    assert split["adam_gb"] * front.GPUS == pytest.approx(copy["adam_gb"], rel=1e-6)
    assert split["activations_gb"] == copy["activations_gb"], "tokens are a GPU's own"


def test_what_moves_is_two_parts_of_three():
    """Two passes of the gradients, or two gathers of the weights and one pass (arXiv 2304.11277, section 3.2.2)."""
    copy, split = (values(states, "keep")["moved_gb"] for states in ("copy", "split"))
    assert copy * 1e9 == pytest.approx(2 * 7 / 8 * 2 * N, rel=1e-6)
    assert 1.45 < split / copy < 1.5, "the root is gathered once"
    assert values("split", "recompute")["moved_gb"] == split


def test_recomputing_is_a_third_of_the_arithmetic_and_less_without_the_head():
    assert 1.3 < values("copy", "recompute")["arithmetic"] < 4 / 3
    assert values("copy", "keep")["arithmetic"] == values("split", "keep")["arithmetic"] == 1


@pytest.mark.parametrize("state", STATES)
def test_words_say_the_numbers_of_the_state(state):
    result = drawn(*state)
    found = result["values"]
    assert f"= {found['moved_gb']:.1f} GB" in result["law"][1]
    left, right = result["law"][1].removesuffix(" GB").split(" GB = ")
    assert eval(left.replace("×", "*")) == pytest.approx(float(right), abs=0.05)
    if found["fits"]:
        assert f"{found['held_gb']:.1f} of the usable {front.ROOM / 1e9:.1f} GB" in result["sentence"]
        assert f">{front.ROOM / 1e9:.1f} GB</text>" in result["svg"] and 'data-mark="usable"' in result["svg"]
        assert "48% more communication and 33% more arithmetic" in result["sentence"]
    else:
        assert f"{found['held_gb']:.0f} GB" in result["sentence"]


def test_the_lever_that_a_sentence_names_works():
    for state, word in zip(STATES[:3], ("Split", "Split", "Recompute"), strict=True):
        better = ("split", state[1]) if word == "Split" else (state[0], "recompute")
        assert f"**{word}**" in drawn(*state)["sentence"]
        assert values(*better)["held_gb"] < 0.55 * values(*state)["held_gb"]


def test_every_gpu_is_drawn_and_what_is_over_the_rim_is_hatched():
    for state in STATES:
        picture, found = drawn(*state)["svg"], values(*state)
        assert all(f'data-mark="{gpu} adam"' in picture for gpu in range(front.GPUS))
        assert ('height="0" data-mark="0 over"' in picture) is found["fits"]
        assert ("at first" in picture) is (state != ("copy", "keep"))


def test_the_account_is_the_models_own():
    held = account(
        front.MODEL,
        front.BATCH,
        front.TOKENS,
        front.Recipe(precision="bf16-master", buckets="beside"),
        front.Layout(dp=8),
    )
    assert values("copy", "keep")["held_gb"] == held.peak_bytes / 1e9
