"""The shell around a widget: sliders, and below them the picture of what they say (widgets).

It knows nothing of what it shows: it hands the controls' values to `compute`, hands what that gives to `draw`, and puts
the picture below the controls.

Every control is a slider. JupyterLab takes the arrow keys of a focused menu, radio button or button for its own
commands, and leaves a slider its keys; so a slider is what a learner can use without a mouse.
"""

import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
import traitlets

from tpviz.diagrams import Drawing, grammar
from tpviz.i18n import _
from tpviz.widgets import naming

RANKS = (1, 2, 4, 8)
"""The numbers of ranks that most sliders offer."""


class Shell(ipywidgets.VBox):  # type: ignore[misc]
    """Controls, and below them the picture of what they say.

    Where no kernel runs, in a notebook as it is stored, the picture stays. An error in `compute` or `draw` is shown in
    the picture's place, until a control is moved on.
    """

    def __init__(
        self,
        compute: Callable[..., Any],
        draw: Callable[[Any], Drawing],
        controls: dict[str, ipywidgets.ValueWidget],
    ) -> None:
        self.controls = controls
        self.picture = ipywidgets.HTML()
        self._compute, self._draw = compute, draw
        self._update()
        for control in controls.values():
            control.observe(self._update, "value")
        super().__init__([*controls.values(), self.picture, naming.names()])
        self.add_class(naming.BOX)

    def _update(self, _change: object = None) -> None:
        """Compute and draw for what the controls say now."""
        try:
            drawing = self._draw(self._compute(**{name: control.value for name, control in self.controls.items()}))
        except Exception as error:
            sentence = _("No picture for this choice. {kind}: {error}").format(kind=type(error).__name__, error=error)
            self.alt, self.picture.value = sentence, _card(sentence)
        else:
            self.alt, self.picture.value = drawing.alt, drawing.html

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget; beside it what it shows now, for where no kernel runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        return {**bundle, "text/html": self.picture.value, "text/plain": self.alt}


def _card(sentence: str) -> str:
    """A sentence where a picture would be."""
    style = (
        f"background:{grammar.CARD};color:{grammar.INK};border:1px solid {grammar.CARD_EDGE};border-radius:8px;"
        "padding:12px 16px;max-width:46em;white-space:pre-wrap;line-height:1.5"
    )
    return f'<div style="{style}">✗ {html.escape(sentence)}</div>'


# Without `echo_update`, the kernel does not first repeat to the browser what the browser has sent: 4 ms of some 45.
class _NumberSlider(ipywidgets.IntSlider):  # type: ignore[misc]
    """A slider over whole numbers."""

    value = traitlets.CInt().tag(sync=True, echo_update=False)


class _ChoiceSlider(ipywidgets.SelectionSlider):  # type: ignore[misc]
    """A slider over a few choices."""

    index = traitlets.Int().tag(sync=True, echo_update=False)


_LOOK: dict[str, Any] = {
    "style": {"description_width": "7em"},
    "layout": {"width": "26em", "max_width": "100%"},
}


def number(label: str, last: int, start: int) -> ipywidgets.ValueWidget:
    """A control for the whole numbers from 0 to the last."""
    return _NumberSlider(value=start, min=0, max=last, description=label, **_LOOK)


def choice(label: str, choices: Sequence[Any], start: object) -> ipywidgets.ValueWidget:
    """A control for a few choices."""
    return _ChoiceSlider(options=choices, value=start, description=label, **_LOOK)


def named(choices: dict[str, Any]) -> list[tuple[str, str]]:
    """Choices in the reader's language, with the names that compute knows them by."""
    return [(_(name), name) for name in choices]
