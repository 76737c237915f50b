"""How the view `precision` says parts and formats."""

from __future__ import annotations


def spoken(part: str) -> str:
    """A part as it is spoken of.

    >>> spoken("block 4, queries and keys"), spoken("head"), spoken("embeddings"), spoken("all")
    ('queries and keys in block 4', 'the head', 'the embeddings', 'all parts')
    """
    if ", " in part:
        block, kind = part.split(", ")
        return f"{kind} in {block}"
    return {"all": "all parts"}.get(part, f"the {part}")


def gradients(part: str) -> str:
    """Its gradients as they are spoken of.

    >>> gradients("block 4, MLP"), gradients("head"), gradients("embeddings"), gradients("all")
    ('the gradients of MLP in block 4', "the head's gradients", "the embeddings' gradients", 'all gradients')
    """
    if ", " in part:
        return f"the gradients of {spoken(part)}"
    return "all gradients" if part == "all" else f"the {part}'{'' if part.endswith('s') else 's'} gradients"


def named(element: str, scales: str, block: int) -> str:
    """What blocks are called, where the combination has a name.

    >>> named("e2m1", "nv", 16), named("e4m3", "up", 32), named("e4m3", "up", 64)
    ('NVFP4', 'MXFP8 (e4m3)', 'e4m3')
    """
    if element == "e2m1" and (scales, block) == ("nv", 16):
        return "NVFP4"
    if scales in ("floor", "up") and block == 32:
        return "MXFP4" if element == "e2m1" else f"MXFP8 ({element})"
    return element
