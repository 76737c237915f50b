"""Shared code of all labs: how a lab starts, meets the other ranks, reads its options, prints and ends.

`start` comes first, before torch; `session` is the device, the ranks, clocks and batches, `join` the rendezvous.
`options` are the flags of a lab, `corpus` its text; `text` has tables and numbers, `report` predictions and
measurements, `recording` the Record, `picture` a plot in a file; `runner` is one run, from its options to its Record.
`launch` is for labs that start torchrun, `hosts` makes several hosts of one machine, `nodes` runs a rank on each,
`leash` ends a job when its starter ends; `chapter` is called by the first cell of a notebook; `limits` are the CPU and
memory that this process may use, `machine` describes the machine, `fits` and `preflight` check whether it is enough.
`tour` plans a tour of all labs, `tour_visit` runs a stop, `tour_page` writes the page.
`architecture`, `architecture_modes`, `bottlenecks`, `budget`, `collectives`, `ddp`, `ddp_scaling`, `fsdp`, `hang`,
`kernels`, `mesh`, `mesh_link`, `pipeline`, `precision`, `recompute`, `slow_link`, `tensor`, `tensor_link` and `zero`
each write the output of one lab.

Measuring is in `measure`, the training job in `train`. Importing this room imports no torch.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    preflight="Check gpu_checks rate",
    report="compare numbers summary verdicts",
    text="ms progress table",
)
