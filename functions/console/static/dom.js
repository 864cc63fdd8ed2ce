// What every view is made with. Text goes into the page as text, never as markup: names are anybody's.

const SVG = 'http://www.w3.org/2000/svg';

function build(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'value') node.value = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(2).filter((c) => c !== null && c !== undefined && c !== false && c !== ''));
  return node;
}

/** el makes an element: el('p', {class: 'soft', onclick: f}, 'text', node). */
export const el = (tag, attrs, ...children) => build(document.createElement(tag), attrs, children);

/** svg makes an element of a drawing. */
export const svg = (tag, attrs, ...children) => build(document.createElementNS(SVG, tag), attrs, children);

let ids = 0;
/** uid is an id that no other element has. */
export const uid = () => `u${++ids}`;

export const byId = (id) => document.getElementById(id);

/** button makes a button that does one thing, and waits while that is under way: three clicks are one. key finds it
  again after its row was redrawn. */
export function button(text, onclick, { kind = '', key, label } = {}) {
  const node = el('button', { type: 'button', class: kind, 'data-key': key, 'aria-label': label, onclick: (event) => {
    if (node.hasAttribute('aria-disabled')) return;
    const work = onclick(event);
    if (!work?.finally) return;
    node.setAttribute('aria-disabled', 'true');
    work.finally(() => {
      node.removeAttribute('aria-disabled');
      node.closest('.acts')?.paint?.(); // of a server: it may wait for longer
    });
  } }, text);
  return node;
}

/** heading is the one h1 of a view, with what stands beside it. */
export function heading(text, ...beside) {
  return el('div', { class: 'head' }, el('h1', { tabindex: '-1' }, text), beside.length
    ? el('div', { class: 'beside' }, ...beside) : null);
}

/** set replaces what an element holds, when it differs. */
export function set(node, ...children) {
  node.replaceChildren(...children.flat(2).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

/** table makes a table that becomes cards on a narrow screen. columns: [[title, class]...]. */
export function table(caption, columns) {
  const body = el('tbody', { role: 'rowgroup' });
  const head = columns.map(([title, kind]) => el('th', { scope: 'col', role: 'columnheader', class: kind }, title));
  return {
    body,
    node: el('div', { class: 'box' }, el('table', { role: 'table' }, el('caption', {}, caption),
      el('thead', { role: 'rowgroup' }, el('tr', { role: 'row' }, head)), body)),
    row: (...cells) => el('tr', { role: 'row' }, cells.map((c, i) => (i === 0
      ? el('th', { scope: 'row', role: 'rowheader', class: columns[0][1] }, c)
      : el('td', { role: 'cell', class: columns[i][1], 'data-label': columns[i][0] },
        (c ?? '') === '' || c.length === 0 ? null : el('div', {}, c))))),
  };
}

/** empty shows that a list is empty, and what to do about it. */
export const empty = (title, ...note) => el('div', { class: 'empty' }, el('p', { class: 'big' }, title),
  el('p', { class: 'soft' }, ...note));

/** choice is a row of options to choose one from: [[value, text]...]. */
export function choice(label, options, value, onchange) {
  const name = uid();
  const legend = el('legend', { class: 'visually-hidden' }, label);
  return el('fieldset', { class: 'choice' }, legend, options.map(([v, text]) => {
    const input = el('input', { type: 'radio', name, value: v, onchange: () => onchange(v) });
    input.checked = v === value;
    return el('label', {}, input, el('span', {}, text));
  }));
}

/** bar shows how much of something is used; max below 0 is no limit. */
export function bar(label, used, max, unit = '') {
  const limited = max !== null && max !== undefined && max >= 0;
  const share = limited && max > 0 ? Math.min(100, (used / max) * 100) : limited && used ? 100 : 0;
  const of = limited ? ` of ${max.toLocaleString('en')}` : '';
  const text = `${used.toLocaleString('en')}${of}${unit}${limited ? '' : ', no limit'}`;
  return el('div', { class: 'gauge' }, el('span', { class: 'soft' }, label), el('span', {}, text),
    svg('svg', { viewBox: '0 0 100 4', preserveAspectRatio: 'none', 'aria-hidden': 'true', class: share >= 90 ? 'full'
      : '' },
      svg('rect', { class: 'rail', width: 100, height: 4 }), svg('rect', { class: 'fill', width: share, height: 4 })));
}

/** showFor hides a node until a promise is true. */
export function showFor(promise, node) {
  node.hidden = true;
  promise.then((isShown) => { node.hidden = !isShown; });
  return node;
}

let hush;
/** say shows a word about what was done, and tells it to screen readers. */
export function say(text) {
  set(byId('toast'), text);
  clearTimeout(hush);
  hush = setTimeout(() => set(byId('toast')), 6000);
}

/** announce tells screen readers only. */
export const announce = (text) => set(byId('live'), text);

const two = (n) => String(n).padStart(2, '0');
const months = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split(' ');

/** clock writes a moment in UTC, as the API and the CLI do. */
export function clock(at, seconds = false) {
  const d = new Date(at);
  const time = `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}${seconds ? `:${two(d.getUTCSeconds())}` : ''}`;
  return `${d.getUTCDate()} ${months[d.getUTCMonth()]} ${time}`;
}

/** span writes a length of time in its largest unit. */
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}
