"""The exercises of rung 11, easy to hard: a job that scales, survives and is paid for, read off its own figures."""

from scaleout.exercises.capstone import curve, data, faults, lab, predict

_ALL = (
    *curve.EXERCISES,
    *faults.EXERCISES,
    *data.EXERCISES,
    *predict.EXERCISES,
    *lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
