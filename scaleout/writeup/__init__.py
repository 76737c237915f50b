"""What is said of Records: a systems write-up of one run or several. `python -m scaleout.writeup RECORD...`

`document` reads and writes it, `facts` says what the Records show, without layout; `sections` puts that in order from
`blocks` (Markdown, HTML) and `figures` (SVG). `tables` has the table that a chapter ends a cell with, `drawings`
the picture; `review` fills the review checklist from a Record. Pure; stands on `records` and `draw`.

A room of its own and not a part of `records`: those are read by labs and checkers that want no page.
"""

from scaleout import face

__getattr__, __dir__, __all__ = face(__name__, document="Page", drawings="drawing", tables="table")
