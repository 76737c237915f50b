"""What every lab needs: how it starts, meets the other ranks, reads its options, prints and ends.

`start` comes first, before torch; `session` is the device, the ranks, clocks and batches, `join` the rendezvous.
`options` are a lab's flags, `corpus` its text; `text` has tables and numbers, `report` prediction beside measurement,
`recording` the Record, `picture` a plot in a file; `runner` is one run, from its options to its Record. `launch` is for
labs that start torchrun, `hosts` makes several hosts of one machine, `nodes` runs a rank on each, `leash` ends a job
with its starter; `chapter` is what a notebook's first cell calls; `limits` are what this process may use of its
machine, `machine` what it is, `fits` and `preflight` ask whether it is enough. `tour` plans a tour of all labs,
`tour_visit` runs a stop, `tour_page` writes it up.
`bottlenecks`, `collectives`, `ddp`, `ddp_scaling`, `fsdp`, `hang`, `mesh`, `mesh_link`, `pipeline`, `precision`,
`recompute`, `slow_link`, `tensor`, `tensor_link` and `zero` say what one lab prints.

Measuring is `measure`'s, the training job `train`'s. Importing this face imports no torch.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    preflight="Check gpu_checks rate",
    report="compare numbers summary verdicts",
    text="ms progress table",
)
