"""Files that runs wrote, read without torch. Pure; stands on `timing`.

`results` is the Record, `provenance` the commit and the command in it; `profiles` stores measured rates of machines,
`files` writes all of these. `trace` reads the traces of torch.profiler (`chrome` has their events), `flight` the dumps
of the flight recorder, `checkpoints` a folder of checkpoints, whose tensors consist of `chunks`.

Reports about Records are in `writeup`; `lab`, `measure` and `train` write Records.
"""
