"""The answers that exercises give of themselves: a number's value, the right choice, the solution's function."""

import re

from scaleout import exercises


def value(stem, key):
    """The value of a number, in base units."""
    return exercises.exercise(stem, key).value


def right(stem, key):
    """The name of the right option of a choice."""
    return next(option.name for option in exercises.exercise(stem, key).options if option.right)


def solution(stem, key):
    """The function that the solution of a function exercise defines."""
    found = exercises.exercise(stem, key)
    space = {}
    exec(re.search(r"```python\n(.*?)```", found.solution, re.S).group(1), space)
    return space[found.function]
