// A calendar of bars: one row for each thing, one bar for each period, and a line at the present. What the bars show is
// also in words, so that no one has to see them.
import { el, svg, set, button, choice, clock } from './dom.js';
import { keyed } from './lists.js';

const HOUR = 3600_000, DAY = 24 * HOUR;
const two = (n) => String(n).padStart(2, '0');
const weekdays = ['Sun', 'Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat'];
const date = (t) => clock(t).replace(/ \d\d:\d\d$/, '');

// A window is some cells of equal length. before is how many of them are over when it shows the present.
const windows = {
  day: { text: 'Day', cell: 4 * HOUR, cells: 6, before: 1, head: (t) => `${two(new Date(t).getUTCHours())}:00` },
  weeks: { text: '2 weeks', cell: DAY, cells: 14, before: 2,
    head: (t) => `${weekdays[new Date(t).getUTCDay()]} ${new Date(t).getUTCDate()}` },
  quarter: { text: '3 months', cell: 7 * DAY, cells: 13, before: 2, head: date },
};

/** during writes a period in UTC; the date of its end is left out when it ends on the day of its start. */
export function during(from, until) {
  const start = clock(from), end = clock(until);
  return `${start} – ${date(from) === date(until) && new Date(until) - new Date(from) < DAY
    ? end.slice(-5) : end} UTC`;
}

/**
 * timeline makes a calendar. show gets its rows: {id, sign, head, words, acts?, bars}, and bars are
 * {from, until, kind, text, warn}. A row with another sign is redrawn. kind is how a bar looks: still, waiting,
 * good, moving or bad. warn is a moment that is marked.
 */
export function timeline(label, unit = 'weeks') {
  let kind = unit, offset = 0, rows = [], sign = '';
  const heads = el('div', { class: 'cells', 'aria-hidden': 'true' }), list = el('div', { class: 'tracks' });
  const when = el('b', { 'aria-live': 'polite' });
  const move = (n) => () => { offset = n ? offset + n : 0; draw(); };
  const steps = el('div', { class: 'beside' },
    button('Earlier', move(-1), { kind: 'quiet', key: 'earlier' }),
    button('Now', move(0), { kind: 'quiet', key: 'now' }), button('Later', move(1), { kind: 'quiet', key: 'later' }),
    choice('How much is shown', Object.entries(windows).map(([k, w]) => [k, w.text]), kind, (v) => {
      kind = v;
      offset = 0;
      draw();
    }));
  const node = el('section', { class: 'card timeline', 'aria-label': label },
    el('div', { class: 'head' }, when, steps), heads, list);

  function bounds() {
    const w = windows[kind];
    const first = Math.floor(Date.now() / w.cell) * w.cell - w.before * w.cell;
    const from = first + offset * w.cell * Math.max(1, w.cells - w.before);
    return { w, from, until: from + w.cells * w.cell };
  }

  function track(row, from, until) {
    const at = (t) => Math.min(1000, Math.max(0, (new Date(t) - from) / (until - from) * 1000));
    const { cells } = windows[kind];
    const lines = Array.from({ length: cells - 1 }, (_, i) => svg('line', { class: 'grid', x1: (i + 1) * 1000 / cells,
      x2: (i + 1) * 1000 / cells, y1: 0, y2: 28 }));
    const bars = row.bars.filter((b) => new Date(b.until) > from && new Date(b.from) < until).flatMap((b) => [
      svg('rect', { class: `period ${b.kind}`, x: at(b.from), y: 6, height: 16,
        width: Math.max(4, at(b.until) - at(b.from)) },
        svg('title', {}, b.text)),
      b.warn && new Date(b.warn) > from && new Date(b.warn) < until
        ? svg('line', { class: 'warn', x1: at(b.warn), x2: at(b.warn), y1: 3, y2: 25 }) : null]);
    const now = Date.now();
    return el('div', { class: 'track' }, el('div', { class: 'what' }, row.head, el('div', { class: 'soft' }, row.words),
      row.acts ? el('div', { class: 'acts' }, row.acts) : null),
      svg('svg', { viewBox: '0 0 1000 28', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, lines, bars,
        now > from && now < until ? svg('line', { class: 'present', x1: at(now), x2: at(now), y1: 0, y2: 28 }) : null));
  }

  function draw() {
    const { w, from, until } = bounds();
    const text = during(from, until - 60_000);
    if (when.textContent !== text) set(when, text);
    const next = `${kind} ${from}`;
    if (next !== sign) set(heads, Array.from({ length: w.cells }, (_, i) => el('span', {}, w.head(from + i * w.cell))));
    sign = next;
    // The line of the present moves on when a minute has passed.
    const minute = Math.floor(Date.now() / 60_000);
    const items = rows.map((row) => ({ id: row.id, sign: [row.sign, kind, from, minute], row }));
    keyed(list, items.map(({ id, sign: s }) => ({ id, s })), (i) => i.id,
      (i) => track(items.find((other) => other.id === i.id).row, from, until));
  }

  return { node, show(next) { rows = next; draw(); } };
}
