"""The view of budget: what the question says, what its two pictures show, and the words about them."""

import re

import pytest

from scaleout import views
from scaleout.draw import svg
from scaleout.numerics.decoding import TOY
from scaleout.timing.budget import Budget
from scaleout.views.budget.setting import FLOPS, SAMPLES, Setting


def setting(**changes):
    return Setting.of(views.defaults("budget") | changes)


def values(**changes):
    return views.render("budget", changes)["values"]


def test_the_question_says_the_best_model_for_one_sample_and_asks_for_another_that_is_smaller():
    asked, opened = views.spec("budget")["controls"][0]["label"], values()
    assert f"{opened['alone_billions']:.1f} billion" in asked and "**64 times**" in asked
    assert views.defaults("budget")["samples"] == 64
    assert opened["best_billions"] < opened["alone_billions"] / 3
    direct = Budget(FLOPS, 10e9).best(setting().fit, 64).parameters
    assert opened["best_billions"] == pytest.approx(direct / 1e9, rel=1e-5)


def test_the_locked_picture_has_one_curve_and_no_parts_of_the_answer():
    for width in (svg.WIDE, svg.NARROW):
        locked = views._view("budget").locked(views.defaults("budget"), width)
        assert locked.count("<polyline") == 2 and "k = 64" not in locked and "answers" not in locked
        assert "further left" not in locked and "second curve" not in locked
        assert views.render("budget", {}, width)["svg"].count("<polyline") == 4


def test_more_samples_shrink_the_model_and_from_some_number_on_answer_fewer_questions():
    each = [values(samples=k) for k in SAMPLES]
    sizes, losses = [one["best_billions"] for one in each], [one["loss"] for one in each]
    assert sizes == sorted(sizes, reverse=True) and losses == sorted(losses)
    assert len({tuple(one["pass_percent"].values()) for one in each}) == 1
    assert each[0]["most_solved"] == 64 and values(answers=20)["most_solved"] == 16


def test_a_slip_about_the_same_model_says_what_it_would_cost():
    slips = dict(map(reversed, views._view("budget").slips(views.defaults("budget"))))
    words = next(words for words in slips if "same model" in words)
    assert f"{2 * values()['alone_billions'] * 1e9 * 10e9 * 64 / FLOPS:.1f} times" in words


def test_a_slip_says_what_one_sample_takes_at_this_setting():
    for amount in (10.0, 20.0):
        said = " ".join(
            words for _, words in views._view("budget").slips(views.defaults("budget") | {"answers": amount})
        )
        assert f"at k = 1 they are {values(answers=amount, samples=1)['answering_percent']:.0f}%" in said


def test_the_label_names_a_second_curve_only_where_one_is_drawn():
    for samples in SAMPLES:
        picture = views.render("budget", {"samples": samples})["svg"]
        assert ("second curve" in picture) == (samples > 1) == (picture.count("<polyline") == 4)


def test_pass_at_k_is_called_an_assumption_at_both_widths():
    for width in (svg.WIDE, svg.NARROW):
        assert "assumptions" in views.render("budget", {}, width)["svg"]


def test_what_is_extrapolated_is_said():
    assert "outside the runs" not in views.render("budget")["sentence"]
    assert "outside the runs" in views.render("budget", {"answers": 20, "samples": 256, "law": "hoffmann"})["sentence"]


def test_the_toy_is_the_packages_before_and_after_training():
    for temperature in (0.5, 1.0, 2.0):
        for model, toy in (("before", TOY), ("after", TOY.trained())):
            shown = values(show="writes", state=model, temperature=temperature)
            assert shown["right_percent"] == pytest.approx(100 * toy.success(temperature), rel=1e-5)
    assert values(show="writes")["best_before"][1] == pytest.approx(8.33, abs=0.01)
    assert values(show="writes")["best_after"][1] == pytest.approx(13.77, abs=0.01)


def test_the_law_of_the_toy_multiplies_what_the_picture_shows():
    result = views.render("budget", {"show": "writes", "temperature": 1.5})
    factors, product = result["law"][1].split(" = ")
    root, fork, lock = (float(part) for part in re.findall(r"[\d.]+", factors))
    assert root * fork * lock**3 == pytest.approx(float(product), rel=0.01)
    for share in result["values"]["right_at"].values():
        assert f"right: {share:.1%}" in result["svg"]


def test_controls_of_the_other_picture_say_so():
    off = {name: set(views.render("budget", {"show": name})["levers"]) for name in ("split", "writes")}
    assert off["split"] == {"state", "temperature", "write_at", "write_top_p"}
    assert off["writes"] == {"samples", "answers", "law"}
