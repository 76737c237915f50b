"""Numbers, tables and marked words for people, on the screen and in a page. Pure, and on the lowest floor.

`amounts` says numbers, bytes and seconds in few digits; `tables` sets rows as Markdown, as aligned text and as HTML;
`markup` turns a little Markdown into HTML. Colours, places and pictures are in `draw`.
"""
