"""The commands that the book's pages, launch files and labs name, as their readers would start them."""

import re
import shlex

import nbformat
import repo

LAUNCH = repo.ROOT / "labs" / "launch"
# What a lab's name and its flags follow; a name alone is a mention.
LAUNCHER = re.compile(
    r"""(?P<by>torchrun\b[^`\n;]*?|accelerate\ launch\b[^`\n;]*?|python
                           |LAB(?:=|:\ )|set\ --|labs/launch/slurm\.sh|labs/launch/two_machines\.sh\ \S+\ \S+)
                          \s*"?labs/(?P<lab>\w+)\.py(?P<words>(?:\ (?!&&|\|)[^\s`;)]+)*)""",
    re.X,
)


def joined(name):
    """A text with continued lines joined; of a script its docstring, of a notebook what is run and, as its readers
    are told to type it, what is fenced."""
    if name.endswith(".ipynb"):
        text = "\n".join(cell.source for cell in nbformat.read(repo.ROOT / name, 4).cells)
        for variable, value in re.findall(r'^([A-Z]+) = "(.*)"$', text, re.M):
            text = text.replace(f"{{{variable}}}", value)
    else:
        text = repo.text(name)
        text = text.split('"""')[1] if name.endswith(".py") else text
    return re.sub(r"\s*\\\n#? *", " ", text)


def commands(name):
    """[(launcher's words, lab, its words)] of each command with a lab in a text, up to the end of the line, of the
    code, or to two blanks."""
    return [
        (split(found["by"]), found["lab"], [w for w in split(found["words"]) if w != "&"])
        for found in LAUNCHER.finditer(joined(name))
    ]


def split(words):
    """Words of a shell, with a number for a variable that counts, and x for each other."""
    words = re.sub(r"\"?\$\w*_NUM_\w*\"?", "8", words)
    words = re.sub(r"\"?\$(?:\w+|\{[^}]+\})([\w/.]*)\"?", r"x\1", words)
    return shlex.split(words.replace('"', ""), comments=True)


def modules(name):
    """[(module, its words)] of each `python -m scaleout.NAME ...` in a text."""
    return [
        (module, split(words))
        for module, words in re.findall(r"python -m (scaleout(?:\.\w+)+)((?: (?!&&|\|)[^\s`;)#]+)*)", joined(name))
    ]
