"""Files that are written completely or not at all, and JSON that is read with checks."""

import json
import os
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path):
    """A temporary Path beside `path` that takes its name at the end; after an error, Ctrl-C too, it goes away.

    ValueError, one line, where the folder cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.urandom(6).hex()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)  # who may read it is the umask's to say: tempfile's are private
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}): choose another folder") from None
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(data, path):
    """Write JSON to `path`, on the disk before it has its name. Returns the Path."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        with written_whole(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror})") from None
    return Path(path)


def read_json(path):
    """Read a JSON object (dict) from `path`; NaN and infinity are refused. ValueError, one line."""
    try:
        if Path(path).exists() and not Path(path).is_file():  # /dev/zero never ends
            raise ValueError("is no file")
        data = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=no_constant)
    except FileNotFoundError:
        raise ValueError("no such file") from None
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError("not a text file") from None
    except RecursionError:
        raise ValueError("not JSON that anybody wrote: it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(data, dict):
        raise ValueError("must hold one JSON object")
    return data


def is_count(value):
    """Whether a value that JSON gave is a whole number from 0, of a size that counts something."""
    return type(value) is int and 0 <= value < 2**63


def no_constant(name):
    """`parse_constant` of json: NaN and infinity are refused."""
    raise ValueError(f"holds {name}: numbers must be finite")
