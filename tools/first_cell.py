"""The first code cell of every chapter: what is beneath is put there by tools/notebooks.py, with the book's address."""


# Finds the book's folder around this chapter, or fetches it. Where the book is there, nothing is done.
def find_book(address=""):
    import subprocess
    import sys
    from pathlib import Path

    class Missing(Exception):
        def _render_traceback_(self):  # what a notebook then shows: one line
            return [str(self)]

    here, name = Path.cwd(), Path(address.rstrip("/")).name.removesuffix(".git")
    places = [here, *here.parents, *([here / name] if name else [])]
    book = next((one for one in places if (one / "scaleout/lab/chapter.py").is_file()), None)
    way = "open this notebook in the folder `notebooks` of the whole book"
    if not (book or address):
        raise Missing(f"This chapter needs the book around it: {way}.")
    if not book:
        print(f"Fetching the book from {address}")
        book = here / name
        fetch = ["git", "clone", "--quiet", "--depth", "1", address, str(book)]
        try:
            subprocess.run(fetch, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
            raise Missing(f"{address} cannot be fetched ({why}): download it, and {way}.") from None
    sys.path.insert(0, str(book))
    from scaleout.lab import chapter

    chapter.begin(book)


find_book()
