"""Numbers in few bits: float formats, how they round, and what helps at their limits. And the distribution of the next
token. Pure; stands on `spec`.

`formats` has any float format and its limits; `rounding` rounds a number into one, and
has the bits of both. `scaling` is loss scaling, static and as in torch's GradScaler; `blocks` are MX, NVFP4 and FP8
with shared scales, `shared` the average result of those for a histogram; `sums` accumulate in a format of few bits;
`octaves` are histograms of sizes, and the result of rounding them; `recorded` has histograms of a real model's
gradients. `decoding` has temperature and truncation, and a toy that is trained on its own text.

Training in these formats is in `parallel`, looking at its gradients in `measure`.
"""
