"""What stands between a reader and the book's Python: a widget in a notebook, a form on the published page.

`live` is the one door, the same in both; `form` is the HTML, `widget` the anywidget, `sandbox` the process that runs a
reader's code beside a kernel. `sphinx` is the extension that puts everything on the site, `directives` what pages can
hold: `tables`, the `ladder`, the `accuracy` of what is predicted, a `source` of the package, the `cards`, what a
`projector` shows; `cells` the code cells that run there, `plots` the figures that notebooks store, `markup` what a
notebook says plainly, `prose` what it adds to words, `short_path` which
part of a chapter is read first, `repairs` what it corrects in the theme, `describe` what a search
engine says of a page; `static` the front end in JavaScript.

The browser loads `live` and what it imports, which is the standard library only. Nothing of a chapter lives here.
"""
