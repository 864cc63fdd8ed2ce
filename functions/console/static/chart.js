// The servers of each hour, drawn at the size that there is room for.
import { el, svg, set, clock } from './dom.js';

const top = 14, plot = 190, foot = 30, left = 34;
const base = top + plot;

// What bars by status are made of, from below: a kind, its word, and Nova's statuses.
const kinds = [['run', 'active', 'ACTIVE'], ['stop', 'stopped', 'SHUTOFF'],
  ['away', 'shelved, paused or suspended', 'SHELVED', 'SHELVED_OFFLOADED', 'PAUSED', 'SUSPENDED'],
  ['bad', 'error', 'ERROR'], ['other', 'other']];

/** split counts the servers of an hour by kind. */
function split(h) {
  const count = Object.fromEntries(kinds.map(([kind]) => [kind, 0]));
  for (const [status, n] of Object.entries(h.by_status)) {
    count[(kinds.find((k) => k.indexOf(status) > 1) || ['other'])[0]] += n;
  }
  return Object.entries(count);
}

/** words say an hour in full. */
export function words(h) {
  if (h.running === null) return 'not known';
  const by = Object.entries(h.by_status).map(([name, n]) => `${n} ${name}`).join(', ');
  return [`${h.running} running of ${h.total}${by ? ` (${by})` : ''}`, h.launched && `${h.launched} launched`,
    h.uncertain && `${h.uncertain} uncertain`, h.source === 'rebuilt' && 'rebuilt from history']
    .filter(Boolean).join(', ');
}

function niceTick(most) {
  for (let size = 1; ; size *= 10) for (const n of [1, 2, 5]) if (n * size * 4 >= most) return n * size;
}

/** chart makes the drawing with its readout; draw(hours, byStatus) shows other hours, or their servers by status. */
export function chart() {
  const readout = el('p', { class: 'readout', id: 'readout' });
  const box = el('div', { class: 'plot' });
  const below = el('div', {}, legend(false));
  let hours = [], at = -1, width = 0, isByStatus = false;

  const show = (i) => {
    const h = hours[i];
    set(readout, el('b', {}, `${clock(h.hour)} UTC`), h.running === null
      ? el('span', {}, 'Not known: no one counted, and the history was purged.') : [
      el('span', { class: 'key run' }, `${h.running} running`), el('span', { class: 'key sum' }, `${h.total} in all`),
      h.launched ? el('span', { class: 'key new' }, `${h.launched} launched`) : null,
      h.uncertain ? el('span', { class: 'key maybe' }, `${h.uncertain} uncertain: Nova's log does not say`) : null,
      el('span', { class: 'soft' }, Object.entries(h.by_status).map(([name, n]) => `${n} ${name}`).join(' · ')),
      el('span', { class: 'soft' }, h.source === 'rebuilt' ? 'rebuilt from history' : 'counted at the hour')]);
    box.querySelectorAll('.hour').forEach((g, k) => g.classList.toggle('on', k === i));
  };
  const rest = () => show(at >= 0 ? at : hours.length - 1);

  function focusOn(i) {
    at = Math.max(0, Math.min(hours.length - 1, i));
    const all = box.querySelectorAll('.hour');
    all.forEach((g, k) => g.setAttribute('tabindex', k === at ? 0 : -1));
    all[at].focus();
  }

  function key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -24, PageDown: 24, Home: -hours.length,
      End: hours.length }[event.key];
    if (!step) return;
    event.preventDefault();
    focusOn((at < 0 ? hours.length - 1 : at) + step);
  }

  function draw() {
    if (!width || !hours.length) return;
    const had = box.contains(document.activeElement);
    const step = (width - left) / hours.length;
    const highest = Math.max(...hours.map((h) => Math.max(h.total, h.launched, h.running + h.uncertain)));
    const tick = niceTick(Math.max(highest, 1));
    const most = Math.max(4, Math.ceil(highest / tick) * tick);
    const y = (n) => base - (n / most) * plot, x = (i) => left + i * step;
    const gap = step >= 6 ? step * 0.26 : 0;
    const grid = [];
    for (let n = 0; n <= most; n += tick) {
      grid.push(svg('path', { class: n ? 'grid' : 'axis', d: `M${left} ${y(n)}H${width}` }),
        svg('text', { x: left - 8, y: y(n), dy: '.35em', 'text-anchor': 'end' }, n));
    }
    const every = [1, 2, 3, 6, 12, 24, 48].find((n) => n * step >= 46) || 48;
    const labels = hours.map((h, i) => {
      const d = new Date(h.hour), hour = d.getUTCHours();
      if (Math.round(d / 36e5) % every || i * step < 8 || width - x(i) < 22) return null;
      return svg('text', { class: hour ? '' : 'day', x: x(i) + step / 2, y: base + 20, 'text-anchor': 'middle' },
        hour ? `${String(hour).padStart(2, '0')}:00` : clock(h.hour).replace(/ \d\d:.*/, ''));
    }).filter(Boolean);
    const stack = (h, i) => {
      let sum = 0;
      return split(h).filter(([, n]) => n).map(([kind, n]) => svg('rect', { class: `of ${kind}`, x: x(i) + gap / 2,
        y: y(sum += n), width: step - gap, height: base - y(n) }));
    };
    const bars = hours.map((h, i) => svg('g',
      { class: `hour ${h.source}`, role: 'img', tabindex: i === (at < 0 ? hours.length - 1 : at) ? 0 : -1,
      'aria-label': `${clock(h.hour)} UTC: ${words(h)}`, onmouseenter: () => show(i), onclick: () => focusOn(i),
        onfocus: () => { at = i; show(i); } },
    svg('rect', { class: 'hit', x: x(i), y: top, width: step, height: plot }),
    h.running === null ? svg('rect', { class: 'lost', x: x(i), y: top, width: step, height: plot })
      : isByStatus ? stack(h, i)
        : svg('rect', { class: 'bar', x: x(i) + gap / 2, y: Math.min(y(h.running), base - 1), width: step - gap,
          height: Math.max(base - y(h.running), 1), rx: step > 14 ? 2 : 0 }),
    h.uncertain && !isByStatus ? svg('rect', { class: 'maybe', x: x(i) + gap / 2, y: y(h.running + h.uncertain),
      width: step - gap, height: y(0) - y(h.uncertain) }) : '',
    h.launched ? svg('circle', { class: 'new', cx: x(i) + step / 2, cy: y(h.launched), r: Math.max(1.5,
      Math.min(4, step / 4)) }) : ''));
    let line = '', on = false;
    hours.forEach((h, i) => {
      if (h.total === null) { on = false; return; }
      line += `${on ? 'V' : `M${x(i).toFixed(1)} `}${y(h.total).toFixed(1)}H${x(i + 1).toFixed(1)}`;
      on = true;
    });
    const image = svg('svg', { class: 'chart', role: 'group',
      'aria-label': 'Servers per hour. The arrow keys go from hour to hour.', width, height: base + foot,
      viewBox: `0 0 ${width} ${base + foot}`, onkeydown: key, onmouseleave: rest },
      hatches(), svg('g', { 'aria-hidden': 'true' }, grid, labels), bars,
        svg('path', { class: 'total', d: line || 'M0 0', 'aria-hidden': 'true' }));
    set(box, image);
    if (had) focusOn(at);
    rest();
  }

  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width) { width = now; draw(); }
  }).observe(box);
  return {
    node: el('div', {}, readout, box, below),
    draw(next, byStatus) {
      if (next.length !== hours.length) at = -1;
      if (byStatus !== isByStatus) set(below, legend(byStatus));
      hours = next;
      isByStatus = byStatus;
      draw();
    },
  };
}

function hatches() {
  const stripes = (id, kind) => svg('pattern', { id, width: 6, height: 6, patternUnits: 'userSpaceOnUse',
    patternTransform: 'rotate(45)' },
    svg('rect', { class: `${kind} under`, width: 6, height: 6 }), svg('path', { class: `${kind} over`, d: 'M3 0v6' }));
  return svg('defs', {}, stripes('lost', 'lost'), stripes('rebuilt', 'rebuilt'));
}

function legend(byStatus) {
  const box = (kind, inner) => svg('svg', { viewBox: '0 0 18 12', class: `chart ${kind}`, 'aria-hidden': 'true' },
    inner);
  const entry = (kind, inner, text) => el('li', {}, box(kind, inner), text);
  const area = (kind) => svg('rect', { class: kind, width: 18, height: 12, rx: 2 });
  return el('ul', { class: 'legend' },
    byStatus ? kinds.map(([kind, text]) => entry('', area(`of ${kind}`), text)) : [
      entry('sampled', area('bar'), 'running'), entry('rebuilt', area('bar'), 'rebuilt from history'),
      entry('', svg('rect', { class: 'maybe', width: 18, height: 12 }), 'uncertain')],
    entry('', svg('path', { class: 'total', d: 'M0 6h18' }), 'in all'),
    entry('', svg('circle', { class: 'new', cx: 9, cy: 6, r: 4 }), 'launched in the hour'),
    entry('missing', svg('rect', { class: 'lost', width: 18, height: 12 }), 'not known'));
}
