// Lays the slides out in the room that they have, lets every key walk a figure's steps, and starts reveal.js.
(async () => {
  const PRINT = /print-pdf/i.test(location.search);
  const SCALES = [1.4, 1.3, 1.2, 1.12, 1.05, 0.98, 0.91]; // of text; at 0.91 code is 19 px
  const LARGEST = 1.2; // of a figure, against the size at which it is drawn

  // Figures

  const steppers = new Map();
  function stepper(block) {
    const figure = block.querySelector('[data-steps]');
    if (!figure?.shadowRoot) return null;
    if (!steppers.has(figure)) {
      const root = figure.shadowRoot;
      const svg = root.querySelector('svg');
      const style = document.createElement('style');
      style.textContent = '.frame { width: 100% } svg { margin: auto; min-width: 0 !important }';
      root.append(style);
      steppers.set(figure, {
        figure, root, svg,
        slider: root.querySelector('input'), panel: root.querySelector('.panel'), said: root.querySelector('output'),
        steps: JSON.parse(figure.dataset.steps).steps,
        width: svg.width.baseVal.value, height: svg.height.baseVal.value, saidHeights: new Map(),
      });
    }
    return steppers.get(figure);
  }

  function go(stepper, step) {
    stepper.slider.value = step;
    stepper.slider.dispatchEvent(new Event('input'));
  }

  // The height of the buttons and the longest sentence: the figure is not to jump while it is stepped through.
  function panelHeight(stepper, width) {
    if (!stepper.saidHeights.has(width)) {
      stepper.said.style.minHeight = '';
      const heights = stepper.steps.map((_, step) => (go(stepper, step), stepper.said.offsetHeight));
      go(stepper, 0);
      stepper.saidHeights.set(width, Math.max(...heights));
    }
    stepper.said.style.minHeight = `${stepper.saidHeights.get(width)}px`;
    return stepper.panel.offsetHeight + 4; // and the frame
  }

  function figureOf(block) {
    const alive = stepper(block);
    const image = block.querySelector('img');
    return {
      block, alive,
      width: alive ? alive.width : image.naturalWidth,
      height: alive ? alive.height : image.naturalHeight,
    };
  }

  // One layout: rows of columns of blocks

  function arrange(body, plan) {
    const rows = plan.map(({ columns, shares }) => {
      const row = document.createElement('div');
      row.className = 'row';
      if (columns.flat().some((block) => block.classList.contains('figure'))) row.classList.add('gives');
      columns.forEach((blocks, index) => {
        const column = document.createElement('div');
        column.className = 'column';
        column.style.flexGrow = shares[index];
        column.append(...blocks);
        row.append(column);
      });
      return row;
    });
    body.replaceChildren(...rows);
  }

  // The scale of the smallest figure; null where something does not fit.
  function measure(body, figures, scale) {
    body.style.setProperty('--s', scale);
    for (const figure of figures) {
      const width = figure.block.clientWidth;
      figure.panel = figure.alive ? panelHeight(figure.alive, width) : 0;
      figure.block.style.flexBasis = `${figure.height * Math.min(LARGEST, width / figure.width) + figure.panel}px`;
    }
    const room = [body, ...body.querySelectorAll('.row, .column')];
    if (room.some((box) => box.scrollHeight > box.clientHeight + 1)) return null;
    const wide = body.querySelectorAll('.code, .text, .out, pre, table');
    if ([...wide].some((box) => box.scrollWidth > Math.min(box.clientWidth, box.closest('.column').clientWidth) + 1)) return null;
    const scales = figures.map(({ block, width, height, panel }) =>
      Math.min(LARGEST, block.clientWidth / width, (block.clientHeight - panel) / height));
    return Math.min(LARGEST, ...scales);
  }

  function* plans(blocks) {
    const whole = (some) => ({ columns: [some], shares: [1] });
    const n = blocks.length;
    yield [whole(blocks)];
    const most = n > 5 ? 1 : n; // many parts can stand in too many ways to try them all
    for (let top = 0; top < Math.min(n - 1, most + 1); top++)
      for (let cut = top + 1; cut < n; cut++)
        for (let end = n; end > Math.max(cut, n - 1 - most); end--)
          for (const share of [0.36, 0.5, 0.62]) {
            const parts = [];
            if (top) parts.push(whole(blocks.slice(0, top)));
            parts.push({ columns: [blocks.slice(top, cut), blocks.slice(cut, end)], shares: [share, 1 - share] });
            if (end < n) parts.push(whole(blocks.slice(end)));
            yield parts;
          }
  }

  // What text and figures are worth at their scales: the smaller one counts most.
  const worth = (text, figure) => Math.min(text, figure) + 0.2 * text + 0.3 * figure;
  const FLOOR = worth(SCALES.at(-1), 0.75); // digits of 18 px; what would be worth less is tried on two slides

  // Lines that are printed whole are read more easily than wrapped ones.
  function best(body, blocks) {
    const whole = bestOf(body, blocks, false);
    if (whole.worth >= FLOOR || blocks.length > 3 || !blocks.some((block) => block.matches('.out'))) return whole;
    const wrapped = bestOf(body, blocks, true);
    return wrapped.worth > whole.worth ? wrapped : whole;
  }

  function bestOf(body, blocks, wrap) {
    body.classList.toggle('wrapped', wrap);
    const figures = blocks.filter((block) => block.classList.contains('figure')).map(figureOf);
    let found = { worth: 0 };
    for (const plan of plans(blocks)) {
      arrange(body, plan);
      // With the smallest text a figure is as large as it gets: what is not worth it then never is.
      const largest = measure(body, figures, SCALES.at(-1));
      if (largest === null) continue;
      for (const scale of SCALES) {
        if (worth(scale, largest) <= found.worth + 0.02) break;
        const figure = scale === SCALES.at(-1) ? largest : measure(body, figures, scale);
        if (figure === null) continue;
        const value = worth(scale, figure);
        if (value > found.worth + 0.02) found = { worth: value, plan, scale, figure, wrap };
      }
    }
    return found;
  }

  function settle(body, blocks, layout) {
    const figures = blocks.filter((block) => block.classList.contains('figure')).map(figureOf);
    if (!layout.plan) layout = smallest(body, blocks, figures);
    arrange(body, layout.plan);
    body.classList.toggle('wrapped', layout.wrap);
    measure(body, figures, layout.scale);
    for (const { alive, block, width, height, panel } of figures) {
      if (!alive) continue;
      const scale = Math.min(LARGEST, block.clientWidth / width, (block.clientHeight - panel) / height);
      alive.svg.style.maxWidth = `${width * scale}px`;
    }
    Object.assign(body.dataset, { scale: layout.scale, figure: layout.figure.toFixed(2) });
  }

  // Better small than cut off; `python -m pytest tests/browser/test_slides.py` names the slides that came to this.
  function smallest(body, blocks, figures) {
    const plan = [{ columns: [blocks], shares: [1] }];
    arrange(body, plan);
    body.classList.add('wrapped');
    for (let scale = SCALES.at(-1); ; scale -= 0.05) {
      const figure = measure(body, figures, scale);
      if (figure !== null || scale < 0.2) return { plan, scale, figure: figure ?? 0, wrap: true };
    }
  }

  // What does not fit on one slide is cut in two where both fare best. What is to be noticed about a picture does not
  // go without it.
  function parts(blocks, cut) {
    const [first, second] = [blocks.slice(0, cut), blocks.slice(cut)];
    const picture = first.findLast((block) => block.querySelector('img'));
    const alone = second.every((block) => block.classList.contains('text'));
    return [first, picture && alone ? [picture.cloneNode(true), ...second] : second];
  }

  function lay(section) {
    const body = section.querySelector('.body');
    const blocks = [...body.querySelectorAll('.block')];
    if (!blocks.length) return;
    let layout = best(body, blocks);
    const cuts = layout.worth < FLOOR ? blocks.slice(1).map((_, index) => index + 1).reverse() : [];
    const tried = cuts.map((cut) => {
      const [first, second] = parts(blocks, cut);
      const copied = first.length + second.length > blocks.length;
      const [one, other] = [best(body, first).worth, best(body, second).worth + (copied ? 0.25 : 0)];
      return { first, second, worth: Math.min(one, other) + 0.01 * (one + other) };
    });
    const cut = tried.reduce((one, other) => (other.worth > one.worth + 0.01 ? other : one), { worth: layout.worth });
    if (!cut.first) return settle(body, blocks, layout);
    const next = section.cloneNode(true);
    next.querySelector('.page').classList.add('again');
    next.querySelector('.body').replaceChildren(...cut.second);
    section.after(next);
    body.replaceChildren(...cut.first);
    lay(section);
    if (cut.first.length + cut.second.length === blocks.length) return lay(next);
    // A picture shown again may be smaller than one shown first.
    settle(next.querySelector('.body'), cut.second, best(next.querySelector('.body'), cut.second));
  }

  // What appears at which key press: blocks in the notebook's order, and a figure's steps when it is there

  function order(section) {
    let index = -1;
    let at = Math.min(...[...section.querySelectorAll('.block')].map((block) => +block.dataset.at));
    for (const block of section.querySelectorAll('.block, .answer')) {
      if (+block.dataset.at > at) {
        at = +block.dataset.at;
        index++;
      }
      if (index >= 0 && +block.dataset.at > 0) {
        block.classList.add('fragment');
        block.dataset.fragmentIndex = index;
      }
      const alive = stepper(block);
      if (!alive) continue;
      if (PRINT) {
        for (const group of alive.root.querySelectorAll('[data-step]')) group.setAttribute('class', 'now');
        alive.panel.remove();
        continue;
      }
      alive.first = index;
      for (let step = 1; step < alive.steps.length; step++) {
        const mark = document.createElement('span');
        mark.className = 'fragment step';
        mark.dataset.fragmentIndex = ++index;
        section.append(mark);
      }
    }
  }

  function follow(section, fragment) {
    for (const alive of steppers.values())
      if (section?.contains(alive.figure) && alive.first !== undefined)
        go(alive, Math.max(0, Math.min(alive.steps.length - 1, fragment - alive.first)));
  }

  function lead(alive) {
    const { h, v, f } = Reveal.getIndices();
    const wanted = alive.first + +alive.slider.value;
    if (wanted !== f) Reveal.slide(h, v, wanted);
  }

  const images = [...document.images];
  await Promise.all(images.map((image) => image.decode().catch(() => null)));
  const slides = document.querySelector('.slides');
  slides.classList.add('measuring');
  slides.querySelectorAll('section > section').forEach(lay);
  slides.querySelectorAll('section > section').forEach(order);
  slides.classList.remove('measuring');

  // A figure takes the keys that it is focused with; on a slide they belong to the deck, which hands them on.
  addEventListener('keydown', (event) => {
    const by = { PageDown: 'next', ArrowRight: 'next', PageUp: 'prev', ArrowLeft: 'prev' }[event.key];
    if (!by || !event.target.closest?.('[data-steps]') || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    Reveal[by]();
  }, true);

  await Reveal.initialize({
    width: 1280, height: 720, margin: 0, minScale: 0.1, maxScale: 4, center: false,
    transition: 'none', backgroundTransition: 'none', hash: true, controls: false, slideNumber: 'c/t',
    navigationMode: 'linear', pdfSeparateFragments: false, pdfMaxPagesPerSlide: 1, plugins: [RevealNotes],
  });
  const now = () => follow(Reveal.getCurrentSlide(), Reveal.getIndices().f ?? -1);
  for (const event of ['slidechanged', 'fragmentshown', 'fragmenthidden']) Reveal.on(event, now);
  now();
  for (const alive of steppers.values()) {
    for (const kind of ['click', 'keyup', 'change']) alive.root.addEventListener(kind, () => lead(alive));
  }
  document.body.dataset.ready = 'true';
})();
