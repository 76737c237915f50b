"""Numbers in few bits: float formats, how they round, and what helps where they end. Pure; stands on `spec`.

`formats` has any float format and its ends; `rounding` brings a number into one, to the nearest or by chance, and has
the bits of each. `scaling` is loss scaling, static and as torch's GradScaler does it; `blocks` are MX, NVFP4 and FP8
with shared scales, `shared` what those make of a histogram on average; `sums` keep their total in a format of few bits;
`octaves` are histograms of sizes, and what a format makes of them; `recorded` has those of a real model's gradients.

Training in these formats is `parallel`'s, what is seen of its gradients `measure`'s.
"""
