"""Which code a run was made with, and by which command, without the paths of one machine. Standard library only."""

import re
import shlex
import subprocess
import sys
from pathlib import Path, PureWindowsPath


def is_absolute(word):
    """True for /home/x, ~/x and C:\\x alike: a path that means something on one machine only."""
    return word.startswith(("/", "~/")) or PureWindowsPath(word).is_absolute()


def commit():
    """Hash of this file's repository, "+changes" after it when tracked files differ; else "unknown"."""
    folder = Path(__file__).resolve().parent

    def git(*words):
        result = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
        return result.stdout.strip() if result.returncode == 0 else ""

    try:
        if not git("ls-files", "--", Path(__file__).name):  # a copy inside somebody else's repository
            return "unknown"
        head, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
        return (head + "+changes" if changed else head) or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def command_line(argv=None, launcher=""):
    """The command, fit for a Record and for a shell, where it gives the same words: an absolute path becomes
    `.../name`, the script `labs/x.py`, and a letter that cannot be printed, as the end of a line in --prompt, "?"."""
    script, *words = argv or sys.argv
    script = PureWindowsPath(script)  # takes both kinds of slash
    shown = [f"{script.parent.name or '.'}/{script.name}"]
    for word in words:
        flag, equals, value = word.partition("=")
        word = _short(f"{flag}={_short(value)}" if equals else word)
        shown.append(re.sub(r"[^\s=]+", lambda match: _short(match[0]), word))  # a prompt may hold several words
    return " ".join([launcher or "python", *(shlex.quote(printable(word)) for word in shown)])


def printable(text):
    """Text as one line for a screen or a Record: what would break the line, or steer a terminal, becomes "?"."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _short(word):
    """`.../name` for an absolute path."""
    return f".../{PureWindowsPath(word).name}" if is_absolute(word) else word
