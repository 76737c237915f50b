"""A model of one's own on GPUs: what fits, how long a step takes, and the price. Pure; stands on the view `planner`.

    python -m scaleout.fit config.json --gpus 8 --device h100-sxm

`command` reads the command line, `answer` finds the figures, the same that the view shows, and `text` prints them.
"""
