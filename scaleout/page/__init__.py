"""The front end of the book's Python: a widget in a notebook, an HTML form on the published page.

`live` is the entry point, the same for both; `form` is the HTML, `widget` the anywidget, `sandbox` the process for a
reader's code next to a kernel. `sphinx` is the extension that puts everything on the site, `directives` the
directives of pages: `tables`, the `ladder`, the `accuracy` of predictions (of fine-tuning: `accuracy_runs`), a
`source` of the package, the `cards`, the pages for a `projector`. `cells` are the code cells that run in the page,
`plots` the figures that notebooks store, `markup` translates what only Sphinx knows, `prose` adds to texts,
`short_path` marks the sections to read first, `repairs` corrects the theme, `describe` has the descriptions of pages;
`static` is the front end in JavaScript.

The browser loads `live` and its imports, which are the standard library only. Nothing of a chapter is here.
"""
