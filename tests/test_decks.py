"""What of a notebook comes on which slide, and when; how it looks is seen in tests/browser/test_slides.py."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import slides, typeset


def cell(kind, source, slide="-", tags=(), outputs=()):
    metadata = {"slideshow": {"slide_type": slide}, "tags": list(tags)}
    if kind == "code":
        return new_code_cell(source, outputs=list(outputs), metadata=nbformat.from_dict(metadata))
    return new_markdown_cell(source, metadata=nbformat.from_dict(metadata))


def text(source, slide="-", **more):
    return cell("text", source, slide, **more)


def code(source, *outputs, slide="-", **more):
    return cell("code", source, slide, outputs=outputs, **more)


def printed(words):
    return new_output("stream", text=words)


def made(*cells):
    return slides.slides(new_notebook(cells=[text("# Title", "slide"), *cells]))[1:]


def kinds(slide):
    return [(block.kind, block.step) for block in slide.blocks]


SOLUTION = "<details>\n<summary>Hint 1</summary>\n\nAdd.\n\n</details>\n<details>\n<summary>Solution</summary>\n\n"
SOLUTION += "```python\nanswer = 3\n\ncheck(answer)\n```\n\n</details>"


def test_each_slide_type_has_its_place():
    one, two = made(
        text("## One\n\nwords", "slide"),
        code("1 + 1", printed("2\n")),
        text("hidden", "skip"),
        text("said", "notes"),
        text("later", "fragment"),
        text("below", "subslide"),
    )
    assert one.heading == two.heading == "One"
    assert kinds(one) == [("text", 0), ("code", 0), ("out", 0), ("text", 1)]
    assert (one.below, two.below) == (False, True)
    assert "said" in one.notes[0]
    assert "hidden" not in slides.section(one, title=False)


def test_an_answer_waits_for_a_key_press():
    asked = text("## One\n\nWhat is 1 + 1?", "slide")
    (slide,) = made(asked, code("1 + 1", printed("2\n")), text("Two."))
    assert kinds(slide) == [("text", 0), ("code", 0), ("out", 1), ("text", 1)]
    (slide,) = made(asked, code("answer = ...", printed("not yet"), tags=["exercise:x"]), code("2", printed("2")))
    assert kinds(slide) == [("text", 0), ("code", 0), ("code", 1), ("out", 1)], "a stub has no output worth showing"


@pytest.mark.parametrize(("kind", "shown"), [("skip", False), ("fragment", True)])
def test_a_solution_is_in_the_notes_and_takes_its_stubs_place_where_it_is_a_fragment(kind, shown):
    (slide,) = made(
        text("## One", "slide"),
        code("answer = ...", tags=["exercise:x"]),
        text(SOLUTION, kind, tags=["solution:x"]),
        text("And so on."),
    )
    exercise = slide.blocks[0]
    assert ("answer" in exercise.answer) == shown
    assert "Add." not in exercise.answer
    assert [block.step for block in slide.blocks] == [0, 2 if shown else 1]
    for words in ("Hint 1", "Add.", "Solution"):
        assert words in slide.notes[0]
    assert "<details" not in slide.notes[0]


def test_outputs_in_the_form_that_a_page_shows_best():
    picture = {"text/html": '<img alt="a" src="data:,">', "image/svg+xml": "<svg/>", "text/plain": "a"}
    (slide,) = made(
        text("## One", "slide"),
        code("folded()", new_output("display_data", picture), tags=["folded"]),
        code("1", new_output("execute_result", {"text/plain": "<1>"})),
        code("2", new_output("error", ename="ValueError", evalue="two\nlines", traceback=["long", "and wide"])),
        code("3", new_output("display_data", {"text/latex": r"$\frac{1}{2}$", "text/plain": "1/2"})),
    )
    picture, _, plain, _, error, _, formula = slide.blocks
    assert picture.kind == "figure"
    assert "&lt;1&gt;" in plain.html
    assert "<div>ValueError: two</div><div>lines</div>" in error.html
    assert "wide" not in error.html
    assert "<mfrac>" in formula.html


def test_links_lead_from_deck_to_deck():
    (slide,) = made(text("## One\n\n[02](02-row.ipynb) [x](https://example.org/a.ipynb) [y](03-b.ipynb#look)", "slide"))
    for link in ('"02-row.html"', '"https://example.org/a.ipynb"', '"03-b.html#look"'):
        assert link in slide.blocks[0].html


def test_a_deck_has_all_in_itself():
    deck = slides.deck(new_notebook(cells=[text("# A title", "slide"), code("x = '</script>'")]))
    assert deck.count("</script>") == 3
    assert "src=" not in deck.partition("<script>")[0]
    assert "RevealNotes" in deck


def test_formulas_and_code_are_typeset():
    made = typeset.markdown("Let $x_1 < y$.\n\n$$\\frac{1}{2}$$\n\n```python\nx = 1  # one\n```")
    assert made.count("<math") == 2
    assert 'display="block"' in made
    assert '<span class="c1"># one</span>' in made
    assert "$" not in made
    with pytest.raises(ValueError, match="left"):
        typeset.formula(r"\left( a")
