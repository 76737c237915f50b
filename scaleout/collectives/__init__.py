"""Communication between ranks: which messages, how many bytes, and how long they take. Pure; stands on `spec`.

Start with `alpha_beta`: bytes, steps and time of a collective, and bandwidths as in nccl-tests. `algorithms` has the
closed formula of each algorithm, `routes` its messages, and `messages` the contents of every rank after each of them.
`nccl` has the algorithm that NCCL would choose and the bandwidth it would reach on the links of `spec.hardware`.
`tensor` has the collectives of a block under tensor and sequence parallelism, `vocabulary` those of the embedding, the
head and the loss, both by the rule of `placements`. `job` has all communication of a job in a step, axis by axis, and
`zero` the communication of each ZeRO stage, by the program that runs it.

Collectives that really run are in `parallel.ring`; their times are measured in `measure.collectives`.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    alpha_beta="bus_bandwidth bus_factor cost",
    nccl="choices price textbook",
)
