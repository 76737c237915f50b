"""What an exercise is, whatever its chapter: the kinds of question, and how an answer is read and judged. Pure.

`kinds` has numbers, choices and labs; `function` runs and judges a reader's code, `apart` is the process that
it runs in, `clock` the time that it had there. `units` and `arithmetic` read numbers as people write them, `nested`
compares what a function gives. What needs ranks is in `exercises.ranks`.
"""

from scaleout.exercises.engine.function import Function, Mistake
from scaleout.exercises.engine.kinds import INPUT, Choice, Exercise, Lab, Number, Option, Slip, Verdict

__all__ = ["INPUT", "Choice", "Exercise", "Function", "Lab", "Mistake", "Number", "Option", "Slip", "Verdict"]
