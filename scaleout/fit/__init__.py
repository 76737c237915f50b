"""A model of one's own on GPUs: what fits, how long a step takes, and the price. Pure; stands on two views.

    python -m scaleout.fit config.json --gpus 8 --device h100-sxm
    python -m scaleout.fit qwen3-8b --device rtx-4090 --qlora

`command` reads the command line; `answer` finds the figures of a cluster, the same that the view `planner` shows, and
`tuning` those of fine-tuning, the view `finetune`'s; `text` prints them.
"""
