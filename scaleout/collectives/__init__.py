"""Messages between ranks: which, how many bytes, and how long they take. Pure; stands on `spec`.

`alpha_beta` is the door: bytes, steps and seconds of a collective, and bandwidths as nccl-tests has them. `algorithms`
has the closed formula of each algorithm, `routes` its messages, `messages` what every rank holds after each of them.
`nccl` is what NCCL would choose and reach on the links of `spec.hardware`. `tensor` has the collectives of a block
under tensor and sequence parallelism, `vocabulary` those of the model's two ends, by the one rule of `placements`.
`job` is all that a job sends in a step, axis by axis. `zero` has what a step of each ZeRO stage sends, by the
program that runs it.

Collectives that really run are in `parallel.ring`; what they took is measured in `measure.collectives`.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    alpha_beta="bus_bandwidth bus_factor cost",
    nccl="choices price textbook",
)
