"""What a run left behind, read without torch. Pure; stands on `timing`.

`results` is the Record, `provenance` the commit and the command in it; `profiles` keeps what machines were measured
as, `files` writes all of it. `trace` reads what torch.profiler wrote (`chrome` has its events), `flight` the flight
recorder's dumps, `checkpoints` a folder of checkpoints, whose tensors `chunks` make up.

What is written about Records is in `writeup`; what writes them is `lab`, `measure` and `train`.
"""
