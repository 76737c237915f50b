"""The exercises of rung 11, easy to hard: a job that scales, survives and is paid for, read off its own figures."""

from scaleout.exercises import capstone_curve, capstone_data, capstone_faults, capstone_lab, capstone_predict

_ALL = (
    *capstone_curve.EXERCISES,
    *capstone_faults.EXERCISES,
    *capstone_data.EXERCISES,
    *capstone_predict.EXERCISES,
    *capstone_lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
