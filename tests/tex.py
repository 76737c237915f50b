"""A card's formula in TeX as Python: enough of TeX for the cards' own, so that they can be held against the package."""

import math
import re
from itertools import pairwise

FACTOR = re.compile(r"[\w.]+$|\)$")


def value(tex, **of):
    """The number that a formula gives, of letters and Greek names; what stands side by side is a product."""
    if found := re.fullmatch(r"\\min\((.*),\\ (.*)\)", tex):
        return min(value(one, **of) for one in found.groups())
    tex = re.sub(r"\\t?frac\{([^}]*)\}\{([^}]*)\}", r"((\1)/(\2))", re.sub(r"\\log_2 (\w)", r"(log2(\1))", tex))
    tex = re.sub(r"\\sqrt\{([^}]*)\}", r"(sqrt(\1))", tex)
    tokens = re.findall(rf"(?:log2|sqrt)(?=\()|{'|'.join(sorted(of, key=len, reverse=True))}|[\d.]+|[-+*/()]", tex)
    python = tokens[0]
    for before, token in pairwise(tokens):
        side = FACTOR.match(before) and before not in ("log2", "sqrt") and (token == "(" or re.match(r"[\w.]", token))
        python += "*" * bool(side) + token
    return eval(python, {"log2": math.log2, "sqrt": math.sqrt}, of)
