"""What an author of exercises has to keep, so that no checker accepts a slip or names a cause that it cannot know."""

import math
import re
from collections import Counter

from cases import each

from scaleout import exercises
from scaleout.exercises.engine import kinds, nested, units

CATALOGUE = [(stem, exercise) for stem in exercises.stems() for exercise in exercises.catalogue(stem)]
NUMBERS = [exercise for _, exercise in CATALOGUE if exercise.kind == "number"]
CHOICES = [exercise for _, exercise in CATALOGUE if exercise.kind == "choice"]
FUNCTIONS = [exercise for _, exercise in CATALOGUE if exercise.kind == "function"]
CODE = [exercise for _, exercise in CATALOGUE if exercise.kind in ("function", "torch")]


def rounded(value, digits):
    """A value as a person writes it with so many digits: 2938 as 2900, 0.0261 as 0.026."""
    return f"{float(f'{value:.{digits - 1}e}'):.12f}".rstrip("0").rstrip(".")


def answer(exercise, base, digits, unit=None):
    number = base / units.UNITS[exercise.dimension][unit or exercise.unit]
    return {"value": rounded(number, digits), "unit": unit or exercise.unit}


@each(NUMBERS)
@each([2, 3])
def test_no_rounded_slip_is_right(exercise, digits):
    """But where what is written has three digits and they are the answer's own: nothing tells those two apart."""
    right = answer(exercise, exercise.value, 3)
    for slip in exercise.slips:
        rounded_slip = answer(exercise, slip.value, digits)
        if rounded_slip != right or len(right["value"].replace(".", "")) < 3:
            verdict = exercise.judge(rounded_slip)
            assert not verdict.ok, (slip.name, rounded_slip, verdict.message)


@each(NUMBERS)
def test_two_or_three_right_digits_are_right(exercise):
    """No slip shares the answer's first two, in the unit that the exercise is about."""
    assert exercise.judge(answer(exercise, exercise.value, 3)).ok
    assert exercise.judge(answer(exercise, exercise.value, 2)).ok, answer(exercise, exercise.value, 2)


UNIT_IN_QUESTION = re.compile(
    r"how many (?:seconds|milliseconds|ms|minutes|hours|per cent|percent|[GMT]i?B)\b"
    r"|\bin (?:seconds|ms|percent|per cent|[GMT]i?B(?:/s)?)\b",
    re.I,
)


@each(NUMBERS)
def test_where_the_question_says_the_unit_a_bare_number_is_taken_in_it(exercise):
    question = next(part for part in re.split(r"(?<=[.?:])\s", exercise.prompt)[::-1] if part.endswith("?"))
    assert exercise.unit_given == bool(UNIT_IN_QUESTION.search(question)), question
    if exercise.unit_given:
        assert exercise.judge(answer(exercise, exercise.value, 4)["value"]).ok


@each(NUMBERS)
def test_one_digit_is_never_taken_for_the_answer_where_it_is_further_off_than_the_tolerance(exercise):
    digit = answer(exercise, exercise.value, 1)
    error = abs(float(digit["value"]) * units.UNITS[exercise.dimension][exercise.unit] / exercise.value - 1)
    verdict = exercise.judge(digit)
    assert verdict.ok == (error <= exercise.tolerance) or verdict.slip in (
        kinds.ROUNDED,
        *(slip.name for slip in exercise.slips),
    )


@each(NUMBERS)
def test_a_slip_is_named_alone_or_not_at_all(exercise):
    """Two slips of nearly one value, or one with that of GB for GiB, leave the engine no way to know."""
    for slip in exercise.slips:
        verdict = exercise.judge(answer(exercise, slip.value, 4))
        assert verdict.slip == slip.name, (slip.name, verdict.slip)


@each(FUNCTIONS)
def test_a_mistake_is_told_from_the_solution_by_three_cases(exercise):
    right = [exercise.reference(*case) for case in exercise.cases]
    too_close = {}
    for mistake in exercise.mistakes:
        results = [mistake.wrong(*case) for case in exercise.cases]
        differing = sum(not nested.equal(*pair) for pair in zip(results, right, strict=True))
        if differing < 3:
            too_close[mistake.name] = differing
    assert not too_close, f"{exercise.key}: cases that tell it from the solution: {too_close}"


@each(FUNCTIONS)
def test_no_two_mistakes_give_the_same_in_all_cases(exercise):
    results = {mistake.name: [mistake.wrong(*case) for case in exercise.cases] for mistake in exercise.mistakes}
    names = list(results)
    equal_pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if nested.equal(results[a], results[b])]
    assert not equal_pairs, f"{exercise.key}: {equal_pairs}"


@each(CODE)
def test_a_stub_is_read_without_scrolling(exercise):
    """The box for code shows 71 columns at a width of 1024 and above."""
    assert [line for line in exercise.stub.splitlines() if len(line) > 71] == []


def label(option):
    """What is read of a label: without the marks of its Markdown."""
    return re.sub(r"[*`]", "", option.label)


@each(CHOICES)
def test_the_labels_of_a_choice_are_of_one_length(exercise):
    lengths = {option.name: len(label(option)) for option in exercise.options}
    shortest, longest = min(lengths.values()), max(lengths.values())
    assert longest <= 1.5 * shortest or longest - shortest <= 12, f"{exercise.key}: {lengths}"


def test_the_right_option_is_not_the_longest_more_often_than_by_chance():
    longest = []
    for choice in CHOICES:
        right = max(len(label(option)) for option in choice.options if option.right)
        if all(len(label(option)) < right for option in choice.options if not option.right):
            longest.append(choice.key)
    assert len(longest) <= len(CHOICES) / 3, f"{len(longest)} of {len(CHOICES)}: {longest}"


def columns(exercise):
    """The answers of a choice that asks several questions at once, such as A link, B data, as {option: row}; {} for
    one that asks a single question. Options that are written otherwise are left out."""
    for mark in (" · ", "; ", ". ", ", ", ": "):
        rows = {option.name: label(option).split(mark) for option in exercise.options}
        width = Counter(map(len, rows.values())).most_common(1)[0][0]
        rows = {name: row for name, row in rows.items() if len(row) == width}
        repeated = [
            value for column in zip(*rows.values(), strict=True) for value, n in Counter(column).items() if n > 1
        ]
        if width > 1 and repeated and len(rows) >= len(exercise.options) - 1:
            return rows
    return {}


@each(CHOICES)
def test_the_majority_of_each_column_does_not_pass_a_grid(exercise):
    """An answer that is put together from what most options say, or the option that most of them agree with."""
    rows, right = columns(exercise), next(option.name for option in exercise.options if option.right)
    if not rows or right not in rows:
        return
    counts = [Counter(column) for column in zip(*rows.values(), strict=True)]
    agree = {name: sum(count[value] for count, value in zip(counts, row, strict=True)) for name, row in rows.items()}
    majority = {
        name: sum(count[value] == max(count.values()) for count, value in zip(counts, row, strict=True))
        for name, row in rows.items()
    }
    for votes in (agree, majority):
        best = max(votes.values())
        assert votes[right] < best or list(votes.values()).count(best) > 1, f"{exercise.key}: {votes}"


def test_grids_are_seen():
    seen = {choice.key for choice in CHOICES if columns(choice)}
    assert {"traces", "which-axes", "four-layouts", "four-runs", "which-format", "which-again", "which-stage"} <= seen


SMALL = {"the", "and", "for", "are", "was", "its", "that", "this", "what", "which", "who", "how", "with", "not", "from",
         "all", "each", "every", "has", "have", "but", "out", "one", "two", "than", "then", "into", "does"}  # fmt: skip


def stems(text):
    """What words begin with, but for those that every sentence has."""
    return {word[:5] for word in re.findall(r"[a-z0-9-]{3,}", text.lower()) if word not in SMALL}


@each(CHOICES)
def test_a_title_shares_no_telling_word_with_the_right_option(exercise):
    """One that no wrong option has."""
    right = next(option for option in exercise.options if option.right)
    wrong_words = set().union(*(stems(label(option)) for option in exercise.options if not option.right))
    assert not stems(exercise.title) & (stems(label(right)) - wrong_words)


@each(CHOICES)
def test_the_name_of_an_option_does_not_say_that_it_is_the_right_one(exercise):
    """Names stand in the page's source, beside their labels."""
    telling = {"right", "correct", "true", "ok", "yes", "answer", "solution", "good"}
    assert not telling & set(next(option.name for option in exercise.options if option.right).split("-"))


@each(FUNCTIONS)
def test_a_title_names_no_function_of_the_solution(exercise):
    """ "A peak is a maximum" says what `max` would."""
    code = "".join(exercise.solution.split("```python")[1:]).split("```")[0]
    called = set(re.findall(r"\b(max|min|sum|sort|ceil|floor|round|mean|any|all|zip)(?=ed\(|\()", code))
    named = [
        word for word in re.findall(r"[a-z]+", exercise.title.lower()) if any(word.startswith(name) for name in called)
    ]
    assert not [word for word in named if word not in ("all", "any", "round", "rounded")], named


def messages(exercise):
    """What a reader can be told of an answer to this one."""
    if exercise.kind == "choice":
        return [option.reason for option in exercise.options]
    if exercise.kind == "number":
        return [exercise.right, *(slip.message for slip in exercise.slips)]
    return [exercise.right, *(mistake.message for mistake in exercise.mistakes)] if exercise.kind == "function" else []


@each([exercise for _, exercise in CATALOGUE])
def test_what_is_shown_as_plain_text_has_no_marks_of_markdown(exercise):
    labels = [option.label for option in exercise.options] if exercise.kind == "choice" else []
    for text in (exercise.title, *labels, *messages(exercise)):
        assert "`" not in text and not re.search(r"\*\w|\w\*", text), text


# A product, a quotient, a sum or a power, after units and plain powers are out of the way.
UNITS_OUT = re.compile(r"\b\w*(?:B|bits?|bytes?|tokens?|FLOP)/s\b|(?:[\d.]+ × )?\b\d+\^-?\d+|1/W\b")
FORMULA = re.compile(r"[\w)%]\s*[×·^+−÷=]\s*[\w(√]|[\w)]\s*/\s*[\w(]|\w\*\w|\blog\d|√|\b[\d.,]+N? of [\d.,]+N?\b")
# What the answer is of the number given, said in words.
TIMES = {2: "half|halved", 4: "quarter|fourth", 3: "third", 8: "eighth", 1 / 2: "twice|double", 1 / 3: "three times",
         1 / 4: "four times"}  # fmt: skip
TELLING = r"(?:that|this|it) is (?:only |just )?(?:a |an |one )?(?:{0})\b(?! of (?!it\b))|\b(?:{0}) of it\b"
COUNTED = re.compile(r"\b(?:one|two) (?:\w+ )?(?:fewer|too few|too many|more|less|longer|shorter)\b", re.I)


def told_numbers(exercise, message):
    """The numbers of a message, in the exercise's units: with the unit behind them, else in each that it offers."""
    for number, unit in re.findall(r"(?<![\w.^-])(\d[\d,]*(?:\.\d+)?)(?: ?([A-Za-z%µ/]+))?", message):
        size, factors = float(number.replace(",", "")), units.UNITS[exercise.dimension]
        if unit in factors or not unit:
            yield from (size * factors[name] for name in ([unit] if unit else {exercise.unit, *exercise.units}))


@each(NUMBERS)
def test_a_first_message_has_neither_the_answer_nor_its_formula(exercise):
    prompt_numbers = set(told_numbers(exercise, exercise.prompt))
    for slip in exercise.slips:
        numbers = [size for size in told_numbers(exercise, slip.message) if size not in prompt_numbers]
        assert not [size for size in numbers if math.isclose(size, exercise.value, rel_tol=0.006)], slip.message
        assert not FORMULA.search(UNITS_OUT.sub("", slip.message)), (slip.name, slip.message)
        assert not COUNTED.search(slip.message), (slip.name, slip.message)
        for times, words in TIMES.items():
            if slip.value and math.isclose(exercise.value / slip.value, times, rel_tol=0.005):
                assert not re.search(TELLING.format(words), slip.message, re.I), (slip.name, slip.message)


def expressions(text):
    """What is written as a formula in a text, each without its spaces and marks."""
    formulas = re.findall(
        r"[\w)]+(?:\s*[×·*/^+−÷]\s*[(\w]+)+\)?", UNITS_OUT.sub("", re.sub(r"[`*]{1,2}(?=\S)", "", text))
    )
    return {re.sub(r"[\s()]", "", formula) for formula in formulas}


@each(FUNCTIONS)
def test_a_mistakes_message_has_no_formula_that_the_prompt_does_not_give(exercise):
    prompt = re.sub(r"[\s()`*]", "", exercise.prompt + exercise.stub)
    for mistake in exercise.mistakes:
        formulas = [formula for formula in expressions(mistake.message) if formula not in prompt]
        assert not formulas, (mistake.name, mistake.message, formulas)
