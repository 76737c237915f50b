"""Ends a run whose loss or gradient is no number, and says which checkpoint is the last good one."""

import math

from scaleout.train import attempts


def check_loss(loss, step, last=None):
    """ValueError, one line, where the mean loss of all ranks is not a finite number. last: the last good checkpoint."""
    if not math.isfinite(loss):
        good = (
            "there is no checkpoint yet: lower the learning rate"
            if last is None
            else (f"the last good checkpoint is step {last}: resume from it with a lower learning rate")
        )
        raise attempts.Final(f"loss is {loss} at step {step}; {good}, or look at the batch of that step")


def check_norm(norm, step, last, scale=None):
    """The norm of the gradient of a step, or None where it is not finite and loss scaling left that step out.

    scale: of the loss of that step, None without scaling. last: step of the last good checkpoint, or None. ValueError,
    one line, where the norm is no finite number and the weights after that step are lost, though its loss, taken
    before, was sound; or where the scale falls below 1: the gradient then overflows by itself.
    """
    if not math.isfinite(norm):
        if scale is not None and scale >= 2:  # half of it is the next step's
            return None
        if scale is not None:
            raise attempts.Final(
                f"the gradient overflows fp16 at step {step} with a loss scale of {scale:g}: "
                "use --precision fp32, or a lower --lr"
            )
        good = f"the last good checkpoint is step {last}" if last is not None else "there is no checkpoint yet"
        raise attempts.Final(
            f"the norm of the gradient is {norm} at step {step}; {good}: resume from it with a lower --lr"
        )
    return norm
