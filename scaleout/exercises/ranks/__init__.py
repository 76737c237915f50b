"""What checks an answer on real ranks: the only rooms of exercises that import torch are this one and each
`STEM/ranks.py`.

`check` starts the ranks and judges what they give, `launch` has the processes, `guard` what a reader's file may touch,
`count` what it sends and holds, `held` what it keeps, `sure` which mistake it makes. A reader starts a checker with
`python -m scaleout.exercises.STEM.ranks FILE.py`.
"""
