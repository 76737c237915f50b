"""The exercises of rung 06, easy to hard: what FSDP's choices cost, and which to make when."""

from scaleout.exercises import fsdp_fallback, fsdp_lab, fsdp_time, fsdp_wire, fsdp_wrap

_ALL = (
    *fsdp_wrap.EXERCISES,
    *fsdp_wire.EXERCISES,
    *fsdp_time.EXERCISES,
    *fsdp_fallback.EXERCISES,
    *fsdp_lab.EXERCISES,
)

EXERCISES = tuple(sorted(_ALL, key=lambda exercise: exercise.level))
