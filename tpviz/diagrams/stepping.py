"""A figure to step through: alive wherever scripts run, with no kernel; where none run, the picture (diagrams).

The script comes with the output and loads nothing. It reads the picture that stands there, lays it out anew in a shadow
tree, so that no style leaks out or in, and shows as many of its steps as asked. Where scripts are not allowed, in a
notebook that JupyterLab does not trust or on a page that only shows images, the picture stays: all steps at once.
"""

import html
import json
from collections.abc import Container
from dataclasses import dataclass

from tpviz.diagrams.drawing import Drawing
from tpviz.diagrams.grammar import CARD, CARD_EDGE, FONT, INK, MUTED
from tpviz.i18n import _

PAST = 0.5
"""How much is left of the shapes of a step that is over; its words stay as they are, to be read."""

_STYLE = f"""
:host {{ display: block; }}
.frame {{ font-family: {FONT}; color: {INK}; background: {CARD}; border: 1px solid {CARD_EDGE}; border-radius: 8px;
  width: fit-content; max-width: 100%; box-sizing: border-box; overflow: hidden; }}
.picture {{ overflow-x: auto; }}
svg {{ display: block; width: 100%; height: auto; }}
svg [data-step] {{ opacity: 0.07; }}
svg [data-step].past, svg [data-step].now {{ opacity: 1; }}
svg [data-step].past path {{ opacity: {PAST}; }}
.panel {{ display: flex; align-items: center; gap: 12px; padding: 8px 16px 12px; flex-wrap: wrap;
  width: 0; min-width: 100%; box-sizing: border-box; }}
button {{ font: inherit; font-size: 18px; min-width: 44px; min-height: 40px; color: {INK}; background: #eceff3;
  border: 1px solid #5b6675; border-radius: 6px; cursor: pointer; }}
button:disabled {{ color: {MUTED}; background: {CARD}; border-color: {CARD_EDGE}; cursor: default; }}
button:focus-visible, input:focus-visible {{ outline: 3px solid #0072b2; outline-offset: 2px; }}
input {{ width: 160px; }}
output {{ flex: 1 1 20em; font-size: 20px; line-height: 1.35; min-height: 2.7em; display: flex; align-items: center; }}
.count {{ font-size: 16px; color: {MUTED}; white-space: nowrap; }}
"""

# `here` is the script's own element; the figure is the element before it. JupyterLab and a slide deck both listen for
# arrow keys, so a key that moves the figure goes no further.
_SCRIPT = """
(() => {
  const figure = document.currentScript.previousElementSibling;
  const image = figure.querySelector('img');
  const { steps, first, style, words } = JSON.parse(figure.dataset.steps);
  const source = decodeURIComponent(image.src.slice(image.src.indexOf(',') + 1));
  const svg = new DOMParser().parseFromString(source, 'image/svg+xml').documentElement;
  svg.style.minWidth = image.style.minWidth;
  svg.style.maxWidth = svg.getAttribute('width') + 'px';
  image.remove();
  const root = figure.attachShadow({ mode: 'open' });
  root.innerHTML = `<style>${style}</style><div class="frame"><div class="picture"></div><div class="panel">
    <button type="button">◀</button><input type="range" min="0" value="0"><button type="button">▶</button>
    <span class="count"></span><output aria-live="polite"></output></div></div>`;
  root.querySelector('.picture').append(document.importNode(svg, true));
  const [back, on] = root.querySelectorAll('button');
  const slider = root.querySelector('input');
  const groups = [...root.querySelectorAll('[data-step]')];
  back.setAttribute('aria-label', words.back);
  on.setAttribute('aria-label', words.on);
  slider.setAttribute('aria-label', words.step);
  slider.max = steps.length - 1;
  const count = (step) => `${first + step} / ${first + steps.length - 1}`;
  const show = (number) => {
    const step = Math.max(0, Math.min(steps.length - 1, number));
    slider.value = step;
    slider.setAttribute('aria-valuetext', count(step));
    for (const group of groups) {
      const own = group.dataset.step - 1;
      group.setAttribute('class', own < step ? 'past' : own === step ? 'now' : '');
    }
    back.disabled = step === 0;
    on.disabled = step === steps.length - 1;
    // A button that is disabled under the learner's finger would take the focus, and so the keys, with it.
    if (root.activeElement?.disabled) figure.focus({ preventScroll: true });
    root.querySelector('.count').textContent = count(step);
    root.querySelector('output').textContent = steps[step];
  };
  back.addEventListener('click', () => show(+slider.value - 1));
  on.addEventListener('click', () => show(+slider.value + 1));
  slider.addEventListener('input', () => show(+slider.value));
  const keys = { ArrowRight: 1, ArrowLeft: -1, PageDown: 1, PageUp: -1, Home: -Infinity, End: Infinity };
  figure.addEventListener('keydown', (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    show(+slider.value + keys[event.key]);
  });
  show(0);
})();
"""


@dataclass(frozen=True, slots=True)
class Stepper:
    """A drawing whose groups are steps, and what is said at each; the last line of a cell shows it."""

    drawing: Drawing
    steps: tuple[str, ...]
    first: int = 1
    """The number of the first step: 0 where that is the start, before anything happened."""

    @property
    def html(self) -> str:
        """The picture as an image, and the script that makes it one to step through."""
        words = {"back": _("one step back"), "on": _("one step on"), "step": _("step")}
        data = {"steps": self.steps, "first": self.first, "style": _STYLE, "words": words}
        steps = html.escape(json.dumps(data, ensure_ascii=False))
        label = html.escape(_("Step through: {alt}").format(alt=self.drawing.alt))
        figure = f'<div tabindex="0" role="group" aria-label="{label}" data-steps="{steps}">'
        return f"{figure}{self.drawing.html}</div><script>{_SCRIPT}</script>"

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.drawing.alt}
