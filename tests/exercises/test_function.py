"""Exercises that run the reader's code: what is right, and what is said of everything else."""

import math
import re
from dataclasses import replace

import pytest
from answers import check, code_of
from cases import each

from scaleout import exercises
from scaleout.exercises.engine import Function, Mistake, nested
from scaleout.page import live

FUNCTIONS = [
    exercise for stem in exercises.stems() for exercise in exercises.catalogue(stem) if exercise.kind == "function"
]
NUMBERS = [exercise for exercise in FUNCTIONS if not exercise.lists]
LISTS = [exercise for exercise in FUNCTIONS if exercise.lists]


@each(FUNCTIONS)
def test_the_solution_of_a_function_is_right(exercise):
    result = check(exercise, code_of(exercise))
    assert result["ok"], result
    assert check(exercise, f"# my answer\nimport math\n{code_of(exercise)}\n\n")["ok"]


@each(FUNCTIONS)
def test_the_stub_of_a_function_is_not(exercise):
    result = check(exercise, exercise.stub)
    assert (result["ok"], result["slip"]) == (False, "stub")


@each(FUNCTIONS)
def test_mistakes_in_a_function_are_named_each_with_its_own_message(exercise):
    """A table of what the misconception computes for each case stands for the reader's code."""
    seen = {}
    for mistake in exercise.mistakes:
        table = [(case, mistake.wrong(*case)) for case in exercise.cases]
        source = f"inf = float('inf')\nTABLE = {table!r}\ndef {exercise.function}(*case):\n    return dict_of(case)\n"
        source += "def dict_of(case):\n    return next(result for known, result in TABLE if known == case)\n"
        result = check(exercise, source)
        assert (result["ok"], result["slip"]) == (False, mistake.name)
        assert re.search(r"gave .* expected |the parts of .*; the batch is ", result["message"])
        seen[mistake.name] = mistake.message
    assert len(set(seen.values())) == len(seen) >= 3


@each(NUMBERS)
@each(
    [
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
    ]
)
def test_what_goes_wrong_in_the_readers_code_is_one_clear_line(exercise, body, slip, words):
    result = check(exercise, f"def {exercise.function}(*case):\n    {body}\n")
    assert (result["ok"], result["slip"]) == (False, slip)
    assert words in result["message"]
    assert "\n" not in result["message"]
    assert "Traceback" not in result["message"]


@each(LISTS)
@each(
    [
        ("return 12345", "not-a-list", "of type int: it should give a list"),
        ("return 'many'", "not-a-list", "of type str: it should give a list"),
        ("return {1: 2}", "not-a-list", "of type dict"),
        ("pass", "no-return", "return"),
        ("return [1, None]", "not-a-list", "with None in it"),
        ("return [1, [..., 2]]", "not-a-list", "with ... in it"),
        ("return [1, 'a']", "not-a-list", "with a str in it"),
        ("return [True]", "not-a-list", "with a bool in it"),
        ("return [[1, float('nan')]]", "not-a-list", "NaN"),
        ("return [float('inf')]", "wrong-result", "[inf]"),
        ("return [10**5000]", "wrong-result", "cannot be shown"),
        ("return []", "wrong-result", "[]"),
        ("return [[[]]]", "wrong-result", "[[[]]]"),
        (
            "return list(range(20_000))",
            "too-long",
            "a list of more than 1,000 numbers, which was read no further: give",
        ),
        ("return [[0] * 40] * 40", "too-long", "(for "),
        ("a = [0] * 9\n    for _ in range(99): a = [a] * 9\n    return a", "too-long", "numbers"),
        ("import numpy\n    return numpy.zeros((50, 50))", "too-long", "numbers"),
        ("a = []\n    a.append(a)\n    return a", "recursion", "without end"),
        ("return [{}['a']]", "exception", "KeyError"),
    ]
)
def test_what_is_no_list_of_numbers_is_one_clear_line(exercise, body, slip, words):
    result = check(exercise, f"def {exercise.function}(*case):\n    {body}\n")
    assert (result["ok"], result["slip"]) == (False, slip)
    assert words in result["message"]
    assert "\n" not in result["message"]
    assert "Traceback" not in result["message"]
    assert len(result["message"]) < 1000


def test_an_overflow_is_a_mistake_where_it_is_infinite_and_no_other_is_like_it():
    """The wrong sign overflows where x is large, which ends the run; of code that was right until then, nothing more is
    known."""
    exercise = Function(
        key="decay",
        level=1,
        title="Decay",
        prompt="exp(-x)",
        hints=("The sign.",),
        solution="exp(-x)",
        function="decay",
        stub="",
        reference=lambda x: math.exp(-x),
        cases=((0.5,), (1.0,), (2.0,), (3.0,), (900.0,), (1000.0,), (950.0,)),
        mistakes=(Mistake("wrong-way", lambda x: math.exp(x) if x < 700 else math.inf, "The sign is wrong."),),
        right="Right.",
    )
    outcome = {"stopped": "Line 5: OverflowError: math range error", "slip": "exception", "printed": ""}
    wrong = next(mistake.wrong for mistake in exercise.mistakes if mistake.name == "wrong-way")
    results_of = {
        name: [f(*case) for case in exercise.cases] for name, f in (("wrong", wrong), ("right", exercise.reference))
    }
    overflow = results_of["wrong"].index(math.inf)
    for results, slip in (
        (results_of["wrong"][:overflow], "wrong-way"),
        (results_of["right"][:overflow], "exception"),
        (None, "exception"),
        (results_of["wrong"][: overflow - 1], "exception"),
        (results_of["wrong"][:-1], "wrong-way"),
        (results_of["wrong"] * 2, "exception"),
        (["x"] * overflow, "exception"),
    ):
        verdict = exercise.judge_run({**outcome, "results": results})
        assert (verdict.ok, verdict.slip) == (False, slip)
        assert verdict.message.endswith(outcome["stopped"])
    assert (
        exercise.judge_run({**outcome, "results": results_of["wrong"][:overflow], "stopped": "MemoryError"}).slip
        == "exception"
    )


def test_the_right_numbers_in_another_order_are_told():
    exercise = exercises.exercise("tensor", "split-heads")
    words = "The numbers are right, their order is not."
    for change, reordered in (("[::-1]", True), ("[::-1] + [0]", False), ("[:-1] + [0]", False)):
        verdict = check(
            exercise, f"{code_of(exercise)}\nplain = columns\ndef columns(*case): return plain(*case){change}\n"
        )
        assert (verdict["slip"], words in verdict["message"]) == ("wrong-result", reordered), change


@each(LISTS)
@each(["tuple({})", "Array({})"])
def test_any_sequence_of_numbers_is_a_list(exercise, wrap):
    """A tuple, and what gives a list with tolist() as numpy and torch do."""
    source = f"{code_of(exercise)}\nplain = {exercise.function}\nclass Array:\n"
    source += "    def __init__(self, held): self.held = held\n    def tolist(self): return self.held\n"
    source += f"def {exercise.function}(*case): return {wrap.format('plain(*case)')}\n"
    result = check(exercise, source)
    assert result["ok"], result


@each(FUNCTIONS)
@each(
    [
        ("x = 1\ndef f(:\n", "syntax", "Line 2: "),
        ("  x = 1\n y = 2", "syntax", "Line "),
        ("\0", "syntax", "null bytes"),
        ("", "input", "write the function"),
        ("x = 1", "no-function", "no function"),
        ("x = 1\ny = undefined", "exception", "Line 2: NameError"),
        (None, "input", "write the function"),
        (3, "input", "write the function"),
        ("x = 1\n" * 10_000, "input", "a few lines are enough"),
    ]
)
def test_code_that_does_not_come_to_a_function(exercise, source, slip, words):
    result = check(exercise, source)
    assert (result["ok"], result["slip"]) == (False, slip)
    assert words in result["message"]
    assert "\n" not in result["message"]


@each(NUMBERS)
@each(
    [
        "import numpy as np\nmake = lambda one: np.int64(one) if one == int(one) else one",
        "import numpy as np\nmake = np.float64",
        "from fractions import Fraction as make",
        "from decimal import Decimal as make",
    ]
)
def test_any_real_number_is_a_result(exercise, wrap):
    body = f"{code_of(exercise)}\nplain = {exercise.function}\n"
    right = check(exercise, f"{wrap}\n{body}def {exercise.function}(*case): return make(plain(*case))\n")
    assert right["ok"], right
    wrong = check(exercise, f"{wrap}\n{body}def {exercise.function}(*case): return make(3 * plain(*case))\n")
    assert (wrong["ok"], wrong["slip"]) == (False, "wrong-result")
    assert ("That is 3 times too large" in wrong["message"]) != exercise.index
    assert "np." not in wrong["message"] and not re.search("Fraction|Decimal", wrong["message"])


def test_a_nan_of_another_type_is_named():
    exercise = NUMBERS[0]
    source = f"import numpy as np\ndef {exercise.function}(*case): return np.float32('nan')\n"
    assert "NaN" in check(exercise, source)["message"]


def test_of_two_mistakes_that_give_the_same_none_is_named():
    exercise = exercises.exercise("memory", "states-function")
    first = exercise.mistakes[0]
    table = [(case, first.wrong(*case)) for case in exercise.cases]
    source = f"def {exercise.function}(*case): return next(given for known, given in {table!r} if known == case)"
    assert exercise.judge(source).slip == first.name
    twice = replace(exercise, mistakes=(*exercise.mistakes, replace(first, name="another")))
    assert twice.judge(source).slip == "wrong-result"


def test_a_page_without_a_module_says_what_it_has(monkeypatch):
    """In a kernel, where numpy is, a module that is missing is one spelt wrongly."""
    exercise = exercises.exercise("collectives", "crossover")
    assert check(exercise, "import nunpy")["message"] == "Line 1: ModuleNotFoundError: No module named 'nunpy'"
    monkeypatch.setattr("sys.platform", "emscripten")
    result = check(exercise, "import nunpy")
    assert (result["slip"], result["message"]) == (
        "exception",
        "Line 1: There is no nunpy here: the page has Python's standard library only. Write the sums yourself.",
    )
    assert live.execute("x = 1\nimport nunpy.linalg")["error"].startswith("line 2: There is no nunpy here: the page")


def test_endless_recursion_is_named():
    exercise = FUNCTIONS[0]
    result = check(exercise, f"def {exercise.function}(*case):\n    return {exercise.function}(*case)\n")
    assert result["slip"] == "recursion"


def test_code_cannot_change_the_cases_for_the_next_run():
    exercise = exercises.exercise("memory", "states-function")
    assert not check(exercise, "def states_bytes(params, optimizer, precision):\n    return 0\n")["ok"]
    assert check(exercise, code_of(exercise))["ok"]


def test_printed_text_is_shown_cut_short(capsys):
    exercise = FUNCTIONS[0]
    result = check(exercise, f"print('working on it')\n{code_of(exercise)}")
    assert result["ok"]
    assert "printed: working on it" in result["message"]
    assert check(exercise, f"print('\\ud800')\n{code_of(exercise)}")["message"].encode().endswith(b"printed: ?")
    flood = check(exercise, f"print('x' * 10**6)\n{code_of(exercise)}")
    assert flood["ok"]
    assert len(flood["message"]) < 500
    assert capsys.readouterr().out == ""


def test_ctrl_c_in_a_kernel_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        check(FUNCTIONS[0], "raise KeyboardInterrupt")


def test_a_function_is_judged_on_results_not_on_style():
    exercise = exercises.exercise("memory", "states-function")
    source = "states_bytes = lambda n, o, p: n * (2*(2,4)[p=='fp32'] + 4*(p=='bf16-master')"
    source += " + ['sgd','momentum','adamw'].index(o) * (4,2)[p=='bf16'])"
    assert check(exercise, source)["ok"]


class Counted(list):
    """A list that says how much of it was read."""

    read = 0

    def __iter__(self):
        for element in super().__iter__():
            type(self).read += 1
            yield element


def test_a_giant_list_is_read_no_further_than_it_is_judged():
    Counted.read = 0
    with pytest.raises(nested.TooLong):
        nested.plain(Counted([Counted(range(50))] * 10**6))
    assert Counted.read <= nested.LONGEST
    assert nested.plain([[0.5] * 9] * 99) == [[0.5] * 9] * 99, "just short enough"


@each([[0] * 10**5, {"a": [0] * 10**5}, "x" * 10**5, (([[7] * 10**4] * 9, 8),), [], {1: 2}, {3}, ((1, "a" * 10**5),)])
def test_a_value_is_shown_by_its_beginning(value):
    short = repr(nested.begins(value, 160))
    assert len(short) < 2000 and short[:160] == repr(value)[:160]


@each([[[0] * 2000], [[0] * 9] * 200, [[[]] * 2000]])
def test_an_outcome_of_giant_lists_is_none(results):
    for exercise in FUNCTIONS:
        for outcome in ({"results": results * len(exercise.cases)}, {"results": results, "stopped": "OverflowError"}):
            assert exercise.judge_run(outcome).slip == "crash" and not exercise.judge_run(outcome).ok


def test_whole_numbers_are_shown_as_a_reader_writes_them():
    task = next(exercise for exercise in LISTS if exercise.key == "axis-groups")
    message = check(task, "def groups(*case):\n    return [[2000.0, 900, 3.5e4 + 0.5]]")["message"]
    assert "groups([2, 3, 2], 1) gave [[2000, 900, 35000.5]], expected [[0, 2, 4], [1, 3, 5]," in message
    assert nested.written([1e300, [True, 2.0], "1.0"]) == [1e300, [True, 2], "1.0"]
