"""Whether a model can fit into this machine at all, asked before it is made. Standard library only, but on a GPU."""

import os

from scaleout.spec.transformer import total_parameters

WIDTH = 4               # bytes of a weight; every rank makes all of them, whatever it keeps


def check(s, shape):
    """ValueError, one line, where the weights alone are larger than the memory.

    s: a lab.session.Session. shape: a Shape. The least that a run takes: gradients, optimizer and activations come to
    it, and may not fit though this does.
    """
    if s.device.type == "cuda":
        import torch
        refuse(shape, torch.cuda.get_device_properties(s.device).total_memory, "this GPU")
    else:
        host(shape, s.world // s.nodes)


def memory():
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def host(shape, processes):
    """`check` for so many processes that share this machine's memory."""
    refuse(shape, memory() / processes, "this machine" if processes == 1 else f"each of {processes} processes here")


def refuse(shape, there, whose):
    """ValueError where `there` bytes do not hold the weights of a Shape."""
    needed = WIDTH * total_parameters(shape)
    if needed > there:
        raise ValueError(f"the weights alone take {needed / 1e9:,.1f} GB, and {whose} has {there / 1e9:,.1f} GB: use "
                         "fewer --layers or a smaller --hidden")
