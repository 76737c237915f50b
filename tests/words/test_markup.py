"""A little Markdown as HTML: marks, and what is none."""

from scaleout.words import markup


def test_markdown_is_little_and_safe():
    text = "Take `a<b` **and** *then* <b>.\n\n- one\n- `two`\n\n```python\nx = '<'\n```\n\n2 * 3 * 4"
    assert markup.html(text) == (
        "<p>Take <code>a&lt;b</code> <strong>and</strong> <em>then</em> &lt;b&gt;.</p>\n"
        "<ul><li>one</li><li><code>two</code></li></ul>\n"
        '<pre tabindex="0"><code>x = &#x27;&lt;&#x27;</code></pre>\n'
        "<p>2 * 3 * 4</p>"
    )


def test_code_stands_in_what_is_emphasized():
    text = "*why `a < b`?* is **`x`** asked of `*p`, 2 * `y` * 3"
    assert markup.inline(text) == (
        "<em>why <code>a &lt; b</code>?</em> is <strong><code>x</code></strong> asked of <code>*p</code>, "
        "2 * <code>y</code> * 3"
    )


def test_only_two_stars_are_bold_where_nothing_else_is_a_mark():
    assert markup.bold('**a < "b"** *c* `d`') == '<strong>a &lt; "b"</strong> *c* `d`'


def test_marks_can_be_left_out_or_made_text():
    assert markup.plain("**Two** ranks, a `file`.") == "Two ranks, a file."
    assert markup.literal("x|y_z $1$ *a*") == r"x\|y\_z \$1\$ \*a\*"
