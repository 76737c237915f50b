"""Every checker accepts the solution and equivalent forms, and names what went wrong in anything else."""

import json
import re

import pytest

from scaleout import exercises, form
from scaleout.exercises import engine, function, units

ALL = exercises.catalogue("memory")
NUMBERS = [one for one in ALL if one.kind == "number"]
CHOICES = [one for one in ALL if one.kind == "choice"]
FUNCTIONS = [one for one in ALL if one.kind == "function"]
name = pytest.mark.parametrize


def key(one):
    return one.key


def check(one, answer):
    return exercises.check("memory", one.key, answer)


def in_unit(one, base, unit=None):
    unit = unit or one.unit
    return f"{base / units.UNITS[one.dimension][unit]!r} {unit}"


def code_of(one):
    return re.search(r"```python\n(.*?)```", one.solution, re.S).group(1)


def test_the_set_is_large_and_varied_enough():
    assert len(ALL) >= 10
    assert {one.kind for one in ALL} == {"number", "choice", "function", "torch"}
    assert len({one.key for one in ALL}) == len(ALL)
    assert [one.level for one in ALL] == sorted(one.level for one in ALL)
    assert {one.level for one in ALL} == {1, 2, 3}


@name("one", ALL, ids=key)
def test_a_spec_is_json_and_tells_no_answer(one):
    spec = exercises.spec("memory", one.key)
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec
    assert {"key", "title", "kind", "level", "prompt", "hints", "solution"} <= set(spec)
    assert not {"value", "slips", "right", "reference", "cases", "mistakes"} & set(spec)
    assert 1 <= len(spec["hints"]) <= 4


@name("one", ALL, ids=key)
def test_texts_are_clean_html_without_leftover_marks(one):
    for text in (one.prompt, one.solution, *one.hints):
        html = form.markdown(text)
        words = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", html, flags=re.S)
        assert "**" not in words, words
        assert "`" not in words, words
        assert re.findall(r"</?(\w+)", html) and set(re.findall(r"</?(\w+)", html)) <= {
            "p", "strong", "em", "code", "pre", "ul", "li"}  # fmt: skip


@name("one", NUMBERS, ids=key)
def test_a_number_is_right_in_every_form(one):
    number = one.value / units.UNITS[one.dimension][one.unit]
    forms = [
        f"{number:.6g} {one.unit}", f"{number:.6g}{one.unit}", f"  {number:.6g}   {one.unit} ",
        f"{number:.6g}", f"{number:.6g}".replace(".", ","), f"{number:.3f}".replace(".", ","),
        f"~ {number:.4g}", f"{number:.6e} {one.unit}", f"{number:.6g} {one.unit.lower()}", number,
        {"value": f"{number:.6g}", "unit": one.unit}, {"value": number},
        {"value": f"{number:.6g} {one.unit}"},
    ]  # fmt: skip
    for answer in forms:
        assert check(one, answer)["ok"], answer


@name("one", [one for one in NUMBERS if not one.only_unit], ids=key)
def test_a_number_is_right_in_every_unit(one):
    for unit in units.UNITS[one.dimension]:
        result = check(one, in_unit(one, one.value, unit))
        assert result["ok"] and result["slip"] == "", unit


@name("one", NUMBERS, ids=key)
def test_slips_are_named_each_with_its_own_message(one):
    seen = {}
    for slip in one.slips:
        result = check(one, in_unit(one, slip.value))
        assert not result["ok"]
        assert result["slip"] == slip.name
        seen[slip.name] = result["message"]
    assert len(seen) >= 3
    assert len(set(seen.values())) == len(seen)


@name("one", NUMBERS, ids=key)
def test_slips_lie_apart_from_the_answer_and_from_each_other(one):
    values = [one.value, *(slip.value for slip in one.slips)]
    for index, first in enumerate(values):
        for second in values[index + 1 :]:
            assert abs(first - second) > 1.2 * one.tolerance * max(first, second), (first, second)


@name("one", NUMBERS, ids=key)
def test_an_unknown_wrong_number_gets_a_direction_a_factor_and_a_place_to_look(one):
    for factor, slip, times in ((1.37, "too-large", "1.37"), (1 / 27.3, "too-small", "27.3")):
        result = check(one, in_unit(one, one.value * factor))
        assert (result["ok"], result["slip"]) == (False, slip)
        assert slip.replace("-", " ") in result["message"]
        assert f"by a factor of {times}." in result["message"]
        assert result["message"].endswith(one.look)


@name("one", [one for one in NUMBERS if one.dimension == "bytes"], ids=key)
def test_gb_for_gib_is_named_both_ways(one):
    decimal, binary = one.value / 10**9, one.value / 2**30
    for wrong in (f"{decimal!r} GiB", f"{binary!r} GB"):
        result = check(one, wrong)
        assert result["slip"] == engine.GIB
        assert "1,073,741,824 bytes" in result["message"]


@name("one", NUMBERS, ids=key)
def test_a_prefix_slip_is_named(one):
    for factor, words in ((1000, "1,000 times too large"), (1e-6, "1,000,000 times too small")):
        result = check(one, in_unit(one, one.value * factor))
        assert result["slip"] == "prefix"
        assert words in result["message"]


def test_bits_are_named():
    lora = exercises.exercise("memory", "lora")
    for factor, words in ((8, "8 times too large"), (1 / 8, "8 times too small")):
        result = check(lora, in_unit(lora, lora.value * factor))
        assert result["slip"] == "bits"
        assert words in result["message"]


def test_the_right_size_in_a_unit_that_was_not_asked_for():
    result = exercises.check("memory", "weights-70b-gib", "140 GB")
    assert (result["ok"], result["slip"]) == (False, "other-unit")
    assert "divide" in result["message"]


@name("one", NUMBERS, ids=key)
@name("answer", [
    "", "   ", "GB", "nan", "NaN GB", "inf", "-3 GB", "1e400 GB", "9" * 5000, "12 apples", "2*70", "1.2.3",
    None, [], True, float("nan"), float("inf"), 10**400, {}, {"value": None}, {"value": [1], "unit": "GB"},
    {"value": "1", "unit": 3}, b"1", "<script>alert(1)</script>",
])  # fmt: skip
def test_what_is_no_number_gets_one_line_that_says_what_would_be_right(one, answer):
    result = check(one, answer)
    assert (result["ok"], result["slip"]) == (False, "input")
    assert "\n" not in result["message"]
    assert len(result["message"]) < 250
    assert re.search(r"such as|use ", result["message"]), result["message"]


@name("one", CHOICES, ids=key)
def test_a_choice_explains_every_option(one):
    results = {option.name: check(one, option.name) for option in one.options}
    assert [option.name for option in one.options if results[option.name]["ok"]] == [
        option.name for option in one.options if option.right]  # fmt: skip
    assert sum(option.right for option in one.options) == 1
    wrong = [result for result in results.values() if not result["ok"]]
    assert len(wrong) >= 3
    assert len({result["slip"] for result in wrong}) == len(wrong)
    assert len({result["message"] for result in wrong}) == len(wrong)
    for option in one.options:
        assert check(one, option.label) == results[option.name]


@name("one", CHOICES, ids=key)
@name("answer", ["", "no such", None, 3, [], {}])
def test_a_choice_that_is_none_of_the_options(one, answer):
    result = check(one, answer)
    assert (result["ok"], result["slip"]) == (False, "input")
    assert one.options[0].name in result["message"]


@name("one", FUNCTIONS, ids=key)
def test_the_solution_of_a_function_is_right(one):
    result = check(one, code_of(one))
    assert result["ok"], result
    assert check(one, f"# my answer\nimport math\n{code_of(one)}\n\n")["ok"]


@name("one", FUNCTIONS, ids=key)
def test_the_stub_of_a_function_is_not(one):
    result = check(one, one.stub)
    assert (result["ok"], result["slip"]) == (False, "stub")


@name("one", FUNCTIONS, ids=key)
def test_mistakes_in_a_function_are_named_each_with_its_own_message(one):
    """A table of what the misconception computes for each case stands for the reader's code."""
    seen = {}
    for mistake in one.mistakes:
        table = [(case, mistake.wrong(*case)) for case in one.cases]
        source = f"TABLE = {table!r}\ndef {one.function}(*case):\n    return dict_of(case)\n"
        source += "def dict_of(case):\n    return next(result for known, result in TABLE if known == case)\n"
        result = check(one, source)
        assert (result["ok"], result["slip"]) == (False, mistake.name)
        assert re.search(r"gave .* expected ", result["message"])
        seen[mistake.name] = mistake.message
    assert len(set(seen.values())) == len(seen) >= 3


@name("one", FUNCTIONS, ids=key)
@name(("body", "slip", "words"), [
    ("return 12345", "wrong-result", "expected"),
    ("pass", "no-return", "return"),
    ("return 'many'", "not-a-number", "one number"),
    ("return True", "not-a-number", "one number"),
    ("return float('nan')", "not-a-number", "NaN"),
    ("return float('inf')", "wrong-result", "gave inf"),
    ("return 10**5000", "wrong-result", "cannot be shown"),
    ("return -1", "wrong-result", "gave -1"),
    ("x = 1\n    return x / 0", "exception", "Line 3: ZeroDivisionError"),
    ("raise Exception", "exception", "Line 2: Exception"),
    ("import sys\n    sys.exit()", "exit", "Line 3"),
    ("return {}['a']", "exception", "KeyError"),
    ("return [0] * 10**18", "memory", "memory"),
])  # fmt: skip
def test_what_goes_wrong_in_the_readers_code_is_one_clear_line(one, body, slip, words):
    result = check(one, f"def {one.function}(*case):\n    {body}\n")
    assert (result["ok"], result["slip"]) == (False, slip)
    assert words in result["message"]
    assert "\n" not in result["message"]
    assert "Traceback" not in result["message"]


@name("one", FUNCTIONS, ids=key)
@name(("source", "slip", "words"), [
    ("x = 1\ndef f(:\n", "syntax", "Line 2: "),
    ("  x = 1\n y = 2", "syntax", "Line "),
    ("\0", "syntax", "null bytes"),
    ("", "input", "write the function"),
    ("x = 1", "no-function", "no function"),
    ("x = 1\ny = undefined", "exception", "Line 2: NameError"),
    (None, "input", "write the function"),
    (3, "input", "write the function"),
    ("x = 1\n" * 10_000, "input", "a few lines are enough"),
])  # fmt: skip
def test_code_that_does_not_come_to_a_function(one, source, slip, words):
    result = check(one, source)
    assert (result["ok"], result["slip"]) == (False, slip)
    assert words in result["message"]
    assert "\n" not in result["message"]


def test_endless_recursion_is_named():
    one = FUNCTIONS[0]
    result = check(one, f"def {one.function}(*case):\n    return {one.function}(*case)\n")
    assert result["slip"] == "recursion"


def test_code_cannot_change_the_cases_for_the_next_run():
    one = exercises.exercise("memory", "states-function")
    assert not check(one, "def states_bytes(params, optimizer, precision):\n    return 0\n")["ok"]
    assert check(one, code_of(one))["ok"]


def test_printed_text_is_shown_cut_short(capsys):
    one = FUNCTIONS[0]
    result = check(one, f"print('working on it')\n{code_of(one)}")
    assert result["ok"]
    assert "printed: working on it" in result["message"]
    flood = check(one, f"print('x' * 10**6)\n{code_of(one)}")
    assert flood["ok"]
    assert len(flood["message"]) < 500
    assert capsys.readouterr().out == ""


def test_ctrl_c_in_a_kernel_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        check(FUNCTIONS[0], "raise KeyboardInterrupt")


def test_a_lab_exercise_says_how_to_run_it():
    one = next(one for one in ALL if one.kind == "torch")
    result = check(one, code_of(one))
    assert (result["ok"], result["slip"]) == (False, "input")
    assert "python -m scaleout.exercises.torch_memory" in result["message"]


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="use memory"):
        exercises.catalogue("nope")
    with pytest.raises(ValueError, match="weights-70b"):
        exercises.check("memory", "nope", "1 GB")


@name(("text", "base"), [
    ("12.5 GB", 12.5e9), ("12,5 GB", 12.5e9), ("1.2e10 bytes", 1.2e10), ("1.2 x 10^10 B", 1.2e10),
    ("1.2×10^10 bytes", 1.2e10), ("1,024 MiB", 2**30), ("1.234,5 GB", 1234.5e9), ("1,234.5 GB", 1234.5e9),
    ("1 024 MiB", 2**30), ("1\u202f024 MiB", 2**30), ("1_024 MiB", 2**30), ("1.234.567 bytes", 1234567),
    ("0,125 GB", 0.125e9), (".5 GB", 0.5e9), ("7 gib", 7 * 2**30), ("7 Gigabytes", 7e9), ("8.", 8e9),
    ("1 PiB", 2**50),
])  # fmt: skip
def test_quantities_as_people_write_them(text, base):
    assert units.parse(text, "bytes", "GB").base == pytest.approx(base, rel=1e-12)


@name("text", ["12 Gb", "12 Gbit", "96 bits", "1 Mb"])
def test_bits_are_not_bytes(text):
    with pytest.raises(ValueError, match="8 bits"):
        units.parse(text, "bytes", "GB")


def test_counts_of_parameters():
    assert units.parse("5 billion", "parameters", "billion").base == 5e9
    assert units.parse("5B", "parameters", "billion").base == 5e9
    assert units.parse("5e9 parameters", "parameters", "billion").base == 5e9
    assert units.parse("128 bits/param", "bytes/parameter", "bytes/parameter").base == 16


def test_a_function_is_judged_on_results_not_on_style():
    one = exercises.exercise("memory", "states-function")
    source = "states_bytes = lambda n, o, p: n * (2*(2,4)[p=='fp32'] + 4*(p=='bf16-master')"
    source += " + ['sgd','momentum','adamw'].index(o) * (4,2)[p=='bf16'])"
    assert check(one, source)["ok"]
    assert isinstance(one, function.Function)
