"""What ipywidgets' sliders do not tell a screen reader: their names, and their values in words (widgets).

ipywidgets gives the handle of a slider no accessible name, and calls the second choice of a slider "1.0". It has no
setting for either, so an invisible image brings along a few lines that run where it loads. Where a page forbids them,
the sliders are as ipywidgets leaves them.
"""

import html

import ipywidgets

BOX = "tpviz-widget"
"""The class of the box whose sliders get names."""

_PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
# The sliders may be on the page half a minute later than the image, on a busy machine. Whatever moves a slider sets its
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
    pixel = f'<img alt="" src="{_PIXEL}" onload="{html.escape(_SCRIPT)}">'
    return ipywidgets.HTML(pixel, layout={"display": "none"})
