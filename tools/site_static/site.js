// A box that scrolls sideways can be reached by the Tab key, and then scrolled by the arrow keys.
const boxes = () => {
  const plain = document.querySelectorAll('pre, .cell_output .output, .table-wrapper, .math-wrapper');
  // The picture of a figure to step through is in a shadow tree.
  const stepped = [...document.querySelectorAll('[data-steps]')].map(
    (figure) => figure.shadowRoot?.querySelector('.picture'));
  return [...plain, ...stepped.filter(Boolean)];
};

const reach = () => {
  for (const box of boxes()) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute('tabindex');
  }
};

window.addEventListener('load', reach);
window.addEventListener('resize', reach);
document.addEventListener('toggle', reach, true); // code in a hint has no width until the hint is open
