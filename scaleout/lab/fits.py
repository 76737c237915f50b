"""Whether a model can fit into this machine, checked before it is made. Standard library only, except on a GPU."""

from scaleout.lab import limits
from scaleout.spec.transformer import total_parameters

# Bytes of a parameter in fp32, and in words. Every rank makes all weights, whatever it keeps of them.
WEIGHTS = 4, "the weights alone take"
REPLICATED = 16, "weights, gradients and AdamW's two moments take"


def check(s, shape, least=WEIGHTS):
    """ValueError, one line, where the least that a rank needs is more than its memory.

    s: a lab.session.Session. shape: a Shape. least: WEIGHTS, or REPLICATED where every rank keeps all states.
    Activations come to it, and may not fit though this does.
    """
    if s.device.type == "cuda":
        import torch

        refuse(shape, torch.cuda.get_device_properties(s.device).total_memory, "this GPU", least)
    else:
        host(shape, s.local_world, least)


def host(shape, processes, least=WEIGHTS):
    """`check` for so many processes that share this machine's memory."""
    owner = "this machine" if processes == 1 else f"each of {processes} processes here"
    refuse(shape, limits.memory() / processes, owner, least)


def refuse(shape, available, owner, least=WEIGHTS):
    """ValueError where `available` bytes do not hold what a Shape needs at least."""
    width, needs = least
    needed = width * total_parameters(shape)
    if needed > available:
        raise ValueError(
            f"{needs} {needed / 1e9:,.1f} GB, and {owner} has {available / 1e9:,.1f} GB: use "
            "fewer --layers or a smaller --hidden"
        )
