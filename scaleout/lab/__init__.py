"""What every lab needs: how it starts, meets the other ranks, reads its options, prints and ends.

`start` comes first, before torch; `session` is the device, the ranks and the clocks, `join` the rendezvous. `text` has
corpus, options and tables, `report` prediction beside measurement; `fits` and `preflight` ask what this machine holds.
`hosts` makes several hosts of one machine, `leash` ends a job with its starter. `ddp`, `fsdp`, `hang`, `link` and
`sweep` say what one lab prints.

Measuring is `measure`'s, the training job `train`'s. Importing this face imports no torch.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(
    __name__,
    fsdp="NAMES",
    preflight="Check gpu_checks rate",
    report="compare numbers summary verdicts",
    text="check_target ms parse progress table",
)
