"""What ipywidgets' sliders do not tell a screen reader: their names, and their values in words (widgets).

ipywidgets gives the handle of a slider no accessible name, and calls the second choice of a slider "1.0". It has no
setting for either, so an empty style sheet brings along a few lines, which run when it is on the page. Where the page
forbids them, the sliders are as ipywidgets leaves them.
"""

import html

import ipywidgets

BOX = "tpviz-widget"
"""The class of the box whose sliders get names."""

# The sliders may be on the page half a minute later than the sheet, on a busy machine. Whatever moves a slider sets its
# words back; the observer sees its own change too, and then nothing differs.
_SCRIPT = f"""
const name = (tries) => {{
  const box = this.closest('.{BOX}');
  const sliders = [...(box?.querySelectorAll('.widget-slider, .widget-hslider') ?? [])];
  const ready = sliders.length && sliders.every((each) => each.querySelector('[role=slider]'));
  if (!ready) return tries && setTimeout(name, 50, tries - 1);
  for (const slider of sliders) {{
    const handle = slider.querySelector('[role=slider]');
    const said = slider.querySelector('.widget-readout');
    handle.setAttribute('aria-label', slider.querySelector('.widget-label').textContent);
    const say = () => {{
      const text = said.textContent.trim();
      if (handle.getAttribute('aria-valuetext') !== text) handle.setAttribute('aria-valuetext', text);
    }};
    const observer = new MutationObserver(say);
    observer.observe(said, {{ childList: true, characterData: true, subtree: true }});
    observer.observe(handle, {{ attributeFilter: ['aria-valuetext'] }});
    say();
  }}
}};
name(600);
"""


def names() -> ipywidgets.HTML:
    """What gives the sliders of its box their names, once they are on a page."""
    sheet = f'<style onload="{html.escape(_SCRIPT)}">.{BOX} {{}}</style>'
    return ipywidgets.HTML(sheet, layout={"display": "none"})
