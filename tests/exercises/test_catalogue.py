"""Every checker accepts the solution and equivalent forms, and names what went wrong in anything else."""

import json
import re

import pytest
from answers import STEM, check, code_of
from cases import each

from scaleout import exercises
from scaleout.exercises.engine import kinds, units
from scaleout.words import markup

WITHOUT_RANKS = {"architecture", "bottlenecks", "budget"}  # whose exercises on real runs read Records and traces
CATALOGUE = [exercise for stem in exercises.stems() for exercise in exercises.catalogue(stem)]
NUMBERS = [exercise for exercise in CATALOGUE if exercise.kind == "number"]
CHOICES = [exercise for exercise in CATALOGUE if exercise.kind == "choice"]


def in_unit(exercise, base, unit=None):
    unit = unit or exercise.unit
    return f"{base / units.UNITS[exercise.dimension][unit]!r} {unit}"


def test_no_key_is_used_twice_in_the_book():
    assert len(STEM) == len(CATALOGUE)


@each(exercises.stems())
def test_the_set_is_large_and_varied_enough(stem):
    catalogue = exercises.catalogue(stem)
    assert len(catalogue) >= 10
    kinds = {"number", "choice", "function"} | ({"torch"} if stem not in WITHOUT_RANKS else set())
    assert {exercise.kind for exercise in catalogue} == kinds
    assert len({exercise.key for exercise in catalogue}) == len(catalogue)
    assert [exercise.level for exercise in catalogue] == sorted(exercise.level for exercise in catalogue)
    assert {exercise.level for exercise in catalogue} == {1, 2, 3}


@each(CATALOGUE)
def test_a_spec_is_json_and_tells_no_answer(exercise):
    spec = exercises.spec(STEM[exercise.key], exercise.key)
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec
    assert {"key", "title", "kind", "level", "minutes", "prompt", "hints", "solution"} <= set(spec)
    assert not {"value", "slips", "right", "reference", "cases", "mistakes"} & set(spec)
    assert 1 <= len(spec["hints"]) <= 4


def test_the_minutes_are_those_of_the_level_or_its_own():
    minutes = {
        key: exercises.spec("collectives", key)["minutes"]
        for key in ("nic-rate", "two-halves", "crossover", "hierarchical", "ring-on-ranks")
    }
    assert list(minutes.values()) == [1, 3, 10, 3, 25]


@each(CATALOGUE)
def test_texts_are_clean_html_without_leftover_marks(exercise):
    for text in (exercise.prompt, exercise.solution, *exercise.hints):
        html = markup.html(text)
        words = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", html, flags=re.S)
        assert "**" not in words, words
        assert "`" not in words, words
        assert re.findall(r"</?(\w+)", html) and set(re.findall(r"</?(\w+)", html)) <= {
            "p",
            "strong",
            "em",
            "code",
            "pre",
            "ul",
            "li",
        }


@each(NUMBERS)
def test_a_number_is_right_in_every_form(exercise):
    number = exercise.value / units.UNITS[exercise.dimension][exercise.unit]
    forms = [
        f"{number:.6g} {exercise.unit}",
        f"{number:.6g}{exercise.unit}",
        f"  {number:.6g}   {exercise.unit} ",
        f"{number:.5f} {exercise.unit}".replace(".", ","),
        f"{number:,.2f} {exercise.unit}",
        f"~ {number:.4g} {exercise.unit}",
        f"about {number:.4g} {exercise.unit}.",
        f"= {number:.4g} {exercise.unit}",
        f"(3 * {number:.6g} - {number:.6g}) / 2 {exercise.unit}",
        f"{number:.6e} {exercise.unit}",
        f"{number:.6g} {exercise.unit.lower()}",
        {"value": f"{number:.6g}", "unit": exercise.unit},
        {"value": number, "unit": exercise.unit},
        {"value": f"{number:.6g} {exercise.unit}", "unit": ""},
    ]
    for answer in forms:
        assert check(exercise, answer)["ok"], answer


@each([exercise for exercise in NUMBERS if not exercise.accepted_units])
def test_a_number_is_right_in_every_unit(exercise):
    for unit in units.UNITS[exercise.dimension]:
        result = check(exercise, in_unit(exercise, exercise.value, unit))
        assert result["ok"] and result["slip"] == "", unit


@each(NUMBERS)
def test_slips_are_named_each_with_its_own_message(exercise):
    seen = {}
    for slip in exercise.slips:
        result = check(exercise, in_unit(exercise, slip.value))
        assert not result["ok"]
        assert result["slip"] == slip.name
        seen[slip.name] = result["message"]
    assert len(seen) >= 3
    assert len(set(seen.values())) == len(seen)


@each(NUMBERS)
def test_slips_lie_apart_from_the_answer_and_from_each_other(exercise):
    for index, first in enumerate(exercise.slips):
        assert abs(first.value - exercise.value) > 1.2 * exercise.tolerance * max(first.value, exercise.value), (
            first.name
        )
        for second in exercise.slips[index + 1 :]:
            distance = 1.2 * min(exercise.tolerance, 0.01) * max(first.value, second.value)
            assert abs(first.value - second.value) > distance, (first.name, second.name)


def test_of_two_slips_within_the_tolerance_the_nearer_is_named():
    run = exercises.exercise("memory", "whole-run")
    slips = {slip.name: slip.value for slip in run.slips if slip.name in ("logits-once", "forgot-optimizer")}
    low, high = sorted(slips.values())
    assert high / low < 1 + 2 * run.tolerance
    for slip, value in slips.items():
        for answer in (value, 0.9 * value + 0.1 * (low + high - value)):
            assert check(run, in_unit(run, answer))["slip"] == slip


def test_an_answer_rounded_to_whole_gb_is_right():
    """Those of the two sums that are long enough to be rounded on the way."""
    for key in ("zero-1", "whole-run"):
        number = exercises.exercise("memory", key)
        assert check(number, f"{number.value / 10**9:.0f} GB")["ok"]
    assert exercises.check("memory", "zero-1", "31 GB")["ok"]
    assert exercises.check("memory", "whole-run", "48 GB")["ok"]
    assert exercises.check("memory", "zero-1", "30 GB")["slip"] == "forgot-split-part"


@each(NUMBERS)
def test_an_unknown_wrong_number_gets_a_direction_and_a_size_that_gives_nothing_away(exercise):
    """In the words of its kind: a size is large or small, a share is points too high, of a count there are too many."""
    counts = ("many", "few")
    words = {"share": ("high", "low"), "steps": counts, "sequences": counts}.get(exercise.dimension, ("large", "small"))
    for factor, slip, way, size in (
        (1.37, "too-large", words[0], "less than half"),
        (1 / 27.3, "too-small", words[1], "a factor of more than 20"),
    ):
        result = check(exercise, in_unit(exercise, exercise.value * factor))
        assert (result["ok"], result["slip"]) == (False, slip)
        expected = r"(less than 2|2 to 10|10 to 30|more than 30) points" if exercise.dimension == "share" else size
        assert re.search(rf" (is|are) too {way}, by {expected}\.$", result["message"]), result["message"]


@each(
    [
        ("24%", "high", "less than 2"),
        ("31%", "high", "2 to 10"),
        ("46%", "high", "10 to 30"),
        ("90%", "high", "more than 30"),
        ("19%", "low", "2 to 10"),
        ("0.1%", "low", "10 to 30"),
    ]
)
def test_a_share_is_off_by_points(answer, way, points):
    """Of 22.6%."""
    message = exercises.check("pipeline", "bubble-share", answer)["message"]
    assert message == f"{answer[:-1]} % is too {way}, by {points} points."


@each([exercise for exercise in NUMBERS if exercise.dimension == "bytes"])
def test_gb_for_gib_is_named_both_ways(exercise):
    decimal, binary = exercise.value / 10**9, exercise.value / 2**30
    for wrong in (f"{decimal!r} GiB", f"{binary!r} GB"):
        result = check(exercise, wrong)
        assert result["slip"] == kinds.GIB
        assert "1,073,741,824 bytes" in result["message"]


@each([exercise for exercise in NUMBERS if exercise.dimension in ("bytes", "bytes/s", "seconds", "parameters")])
def test_a_prefix_slip_is_named(exercise):
    for factor, words in ((1000, "1,000 times too large"), (1e-6, "1,000,000 times too small")):
        result = check(exercise, in_unit(exercise, exercise.value * factor))
        assert result["slip"] == "prefix"
        assert words in result["message"]


@each([exercise for exercise in NUMBERS if exercise.dimension == "share"])
def test_per_cent_for_a_share_is_named(exercise):
    result = check(exercise, in_unit(exercise, exercise.value / 100))
    assert result["slip"] == "prefix"
    assert "100 times too small" in result["message"]


@each(NUMBERS)
def test_a_thousands_comma_makes_a_number_larger(exercise):
    number = exercise.value / units.UNITS[exercise.dimension][exercise.unit]
    for answer in (f"{number:.3f}".replace(".", ","), f"{round(number):,},000"):
        assert not check(exercise, {"value": answer, "unit": exercise.unit})["ok"] or number < 1 or number >= 1000, (
            answer
        )


BARE = ("bytes/parameter", "steps", "sequences", "times")


@each([exercise for exercise in NUMBERS if exercise.dimension not in BARE and not exercise.unit_given])
def test_a_size_without_a_unit_is_asked_for_one(exercise):
    number = f"{exercise.value / units.UNITS[exercise.dimension][exercise.unit]:.4g}"
    for answer in (number, float(number), {"value": number}, {"value": number, "unit": ""}):
        result = check(exercise, answer)
        assert (result["ok"], result["slip"]) == (False, "input")
        assert "of what? Choose a unit: use" in result["message"]
        assert exercise.unit in result["message"]


def test_a_unit_that_the_question_names_need_not_be_repeated():
    assert exercises.check("memory", "adamw-bytes", "14")["ok"]


def test_the_right_size_in_a_unit_that_was_not_asked_for():
    result = exercises.check("memory", "weights-70b-gib", "140 GB")
    assert (result["ok"], result["slip"]) == (False, "other-unit")
    assert "asks for GiB" in result["message"] and "divide" not in result["message"]


@each(NUMBERS)
@each(
    [
        "",
        "   ",
        "GB",
        "nan",
        "NaN GB",
        "inf",
        "-3 GB",
        "1e400 GB",
        "9" * 5000,
        "12 apples",
        "2*",
        "1.2.3",
        "²",
        "1/0",
        "(1",
        "2**9**9",
        "1e999",
        "9**9**9**9",
        "1-2",
        "__import__('os').getpid()",
        "(" * 99,
        "1400,000",
        "1 2 GB",
        None,
        [],
        True,
        float("nan"),
        float("inf"),
        10**400,
        {},
        {"value": None},
        {"value": [1], "unit": "GB"},
        {"value": "1", "unit": 3},
        b"1",
        "<script>alert(1)</script>",
    ]
)
def test_what_is_no_number_gets_one_line_that_says_what_would_be_right(exercise, answer):
    result = check(exercise, answer)
    assert (result["ok"], result["slip"]) == (False, "input")
    assert "\n" not in result["message"]
    assert len(result["message"]) < 250
    assert re.search(r"such as|use ", result["message"]), result["message"]


@each(CHOICES)
def test_a_choice_explains_every_option(exercise):
    results = {option.name: check(exercise, option.name) for option in exercise.options}
    assert [option.name for option in exercise.options if results[option.name]["ok"]] == [
        option.name for option in exercise.options if option.right
    ]
    assert sum(option.right for option in exercise.options) == 1
    wrong = [result for result in results.values() if not result["ok"]]
    assert len(wrong) >= 3
    assert len({result["slip"] for result in wrong}) == len(wrong)
    assert len({result["message"] for result in wrong}) == len(wrong)
    for option in exercise.options:
        assert check(exercise, option.label) == results[option.name]


@each(CHOICES)
@each(["", "no such", None, 3, [], {}])
def test_a_choice_that_is_none_of_the_options(exercise, answer):
    result = check(exercise, answer)
    assert (result["ok"], result["slip"]) == (False, "input")
    shown = exercises.spec(STEM[exercise.key], exercise.key)[
        "options"
    ]  # in this order, which does not tell the right one
    assert f": {', '.join(option for option, _ in shown)}." in result["message"]


@each([stem for stem in exercises.stems() if stem not in WITHOUT_RANKS])
def test_a_lab_exercise_says_how_to_run_it(stem):
    exercise = next(exercise for exercise in exercises.catalogue(stem) if exercise.kind == "torch")
    result = check(exercise, code_of(exercise))
    assert (result["ok"], result["slip"]) == (False, "input")
    assert f"python -m scaleout.exercises.{stem}.ranks" in result["message"]


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="use architecture or bottlenecks or budget or capstone or collectives"):
        exercises.catalogue("nope")
    with pytest.raises(ValueError, match="weights-70b"):
        exercises.check("memory", "nope", "1 GB")
