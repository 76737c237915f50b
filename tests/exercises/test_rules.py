"""What an author of exercises has to keep, so that no checker accepts a slip or names a cause that it cannot know."""

import re

from cases import each

from scaleout import exercises
from scaleout.exercises.engine import kinds, nested, units

ALL = [(stem, one) for stem in exercises.STEMS for one in exercises.catalogue(stem)]
NUMBERS = [one for _, one in ALL if one.kind == "number"]
CHOICES = [one for _, one in ALL if one.kind == "choice"]
FUNCTIONS = [one for _, one in ALL if one.kind == "function"]
CODE = [one for _, one in ALL if one.kind in ("function", "torch")]


def rounded(value, digits):
    """A value as a person writes it with so many digits: 2938 as 2900, 0.0261 as 0.026."""
    return f"{float(f'{value:.{digits - 1}e}'):.12f}".rstrip("0").rstrip(".")


def answer(one, base, digits, unit=None):
    number = base / units.UNITS[one.dimension][unit or one.unit]
    return {"value": rounded(number, digits), "unit": unit or one.unit}


@each(NUMBERS)
@each([2, 3])
def test_no_rounded_slip_is_right(one, digits):
    """But where what is written has three digits and they are the answer's own: nothing tells those two apart."""
    own = answer(one, one.value, 3)
    for slip in one.slips:
        given = answer(one, slip.value, digits)
        if given != own or len(own["value"].replace(".", "")) < 3:
            verdict = one.judge(given)
            assert not verdict.ok, (slip.name, given, verdict.message)


@each(NUMBERS)
def test_two_or_three_right_digits_are_right_or_asked_for_one_more(one):
    """Two digits are only refused where a slip has the same two."""
    assert one.judge(answer(one, one.value, 3)).ok
    two = answer(one, one.value, 2)
    verdict = one.judge(two)
    shared = any(answer(one, slip.value, 2) == two for slip in one.slips)
    assert verdict.ok or (shared and verdict.slip in (kinds.ROUNDED, *(slip.name for slip in one.slips))), two


@each(NUMBERS)
def test_one_digit_is_never_taken_for_the_answer_where_it_is_further_off_than_the_tolerance(one):
    given = answer(one, one.value, 1)
    off = abs(float(given["value"]) * units.UNITS[one.dimension][one.unit] / one.value - 1)
    verdict = one.judge(given)
    assert verdict.ok == (off <= one.tolerance) or verdict.slip in (kinds.ROUNDED, *(slip.name for slip in one.slips))


@each(NUMBERS)
def test_a_slip_is_named_alone_or_not_at_all(one):
    """Two slips of nearly one value, or one with that of GB for GiB, leave the engine no way to know."""
    for slip in one.slips:
        verdict = one.judge(answer(one, slip.value, 4))
        assert verdict.slip == slip.name, (slip.name, verdict.slip)


@each(FUNCTIONS)
def test_a_mistake_is_told_from_the_solution_by_three_cases(one):
    right = [one.reference(*case) for case in one.cases]
    few = {}
    for mistake in one.mistakes:
        given = [mistake.wrong(*case) for case in one.cases]
        apart = sum(not nested.same(*pair) for pair in zip(given, right, strict=True))
        if apart < 3:
            few[mistake.name] = apart
    assert not few, f"{one.key}: cases that tell it from the solution: {few}"


@each(FUNCTIONS)
def test_no_two_mistakes_give_the_same_in_all_cases(one):
    given = {mistake.name: [mistake.wrong(*case) for case in one.cases] for mistake in one.mistakes}
    names = list(given)
    same = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if nested.same(given[a], given[b])]
    assert not same, f"{one.key}: {same}"


@each(CODE)
def test_a_stub_is_read_without_scrolling(one):
    """The box for code shows 71 columns at a width of 1024 and above."""
    assert [line for line in one.stub.splitlines() if len(line) > 71] == []


def label(option):
    """What is read of a label: without the marks of its Markdown."""
    return re.sub(r"[*`]", "", option.label)


@each(CHOICES)
def test_the_labels_of_a_choice_are_of_one_length(one):
    lengths = {option.name: len(label(option)) for option in one.options}
    shortest, longest = min(lengths.values()), max(lengths.values())
    assert longest <= 1.5 * shortest or longest - shortest <= 12, f"{one.key}: {lengths}"


def test_the_right_option_is_not_the_longest_more_often_than_by_chance():
    longest = []
    for one in CHOICES:
        right = max(len(label(option)) for option in one.options if option.right)
        if all(len(label(option)) < right for option in one.options if not option.right):
            longest.append(one.key)
    assert len(longest) <= len(CHOICES) / 3, f"{len(longest)} of {len(CHOICES)}: {longest}"
