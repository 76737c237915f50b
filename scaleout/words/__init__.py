"""Numbers, tables and simple Markdown for people, on the screen and on a page. Pure, and on the lowest floor.

`amounts` writes numbers, bytes and times in few digits; `tables` writes rows as Markdown, as aligned text and as HTML;
`markup` turns simple Markdown into HTML. Colours, places and pictures are in `draw`.
"""
