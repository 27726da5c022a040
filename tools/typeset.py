"""A maintainer's tool: Markdown, formulas, code and tracebacks as HTML that asks for no script, font or network.

Formulas become MathML, which browsers set themselves; code is coloured here. The page carries CODE_CSS.
"""

import html

from latex2mathml.converter import convert
from nbconvert.filters.ansi import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.style import Style
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token


class _Ink(Style):  # type: ignore[misc]
    """Few colours, each at least 4.5:1 on white and on a code cell's grey."""

    styles = {  # noqa: RUF012 (pygments' own form)
        Token: "#1f2933",
        Comment: "#52606d",
        Keyword: "bold #005a8c",
        Keyword.Constant: "#005a8c",
        Operator.Word: "bold #005a8c",
        Name.Builtin: "#00664a",
        Name.Function: "#1f2933",
        Name.Decorator: "#98406f",
        Number: "#8f3d00",
        String: "#8f3d00",
        String.Interpol: "#1f2933",
    }


_FORMATTER = HtmlFormatter(style=_Ink, cssclass="highlight", nobackground=True)
CODE_CSS = "\n".join(rule for rule in _FORMATTER.get_style_defs().splitlines() if rule.startswith(".highlight "))


def formula(latex: str, *, block: bool = False) -> str:
    """A formula in LaTeX as MathML; ValueError, with the formula, where it is not understood."""
    try:
        mathml = str(convert(latex.strip(), display="block" if block else "inline"))
    except Exception as error:  # each of its dozen complaints is a class of its own, with no common one
        raise ValueError(f"cannot set the formula {latex!r}: {type(error).__name__}") from error
    return mathml


class _Renderer(IPythonRenderer):
    """Markdown as JupyterLab reads it, with formulas set and code coloured."""

    def block_code(self, code: str, info: str | None = None) -> str:
        return code_html(code, (info or "text").split()[0])

    def block_math(self, body: str) -> str:
        return formula(body, block=True)

    def inline_math(self, body: str) -> str:
        return formula(body)

    def latex_environment(self, name: str, body: str) -> str:
        return formula(f"\\begin{{{name}}}{body}\\end{{{name}}}", block=True)


def markdown(text: str) -> str:
    """A cell of text as HTML. HTML inside it passes through, as in JupyterLab."""
    return MarkdownWithMath(_Renderer(escape=False, exclude_anchor_links=True)).render(text)


def code_html(source: str, language: str = "python") -> str:
    """Code, coloured: a <div class="highlight"> with a <pre>."""
    return str(highlight(source, get_lexer_by_name(language), _FORMATTER))


def terminal_html(text: str) -> str:
    """What a program printed, a traceback's colours included, for a <pre>."""
    return str(ansi2html(text))  # type: ignore[no-untyped-call]


def latex_html(text: str) -> str:
    """An output of kind text/latex: its formulas, between dollars, and what stands around them."""
    stripped = text.strip()
    if stripped.startswith("$") and stripped.endswith("$"):
        return formula(stripped.strip("$"), block=True)
    return f"<pre>{html.escape(text)}</pre>"
