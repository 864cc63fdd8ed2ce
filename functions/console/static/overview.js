// What runs now, what ran in each hour, and how much of the quota is used.
import { el, set, button, heading, choice, bar, table, clock, empty } from './dom.js';
import { call, get } from './api.js';
import { filter, keep } from './address.js';
import { chart, words } from './chart.js';

const ranges = [['24', '24 hours'], ['168', '7 days'], ['720', '30 days']];

const bars = [['', 'Running'], ['status', 'By status']];

export function view({ refresh }) {
  let hours = ranges.find(([value]) => value === filter('hours'))?.[0] || '24', sign = '', drawn = [],
    by = filter('bars') === 'status' ? 'status' : '';
  const picture = chart();
  const now = el('div', { class: 'figures' });
  const quota = el('div', { class: 'gauges' });
  const nothing = el('div');
  const list = table('Servers per hour in UTC, the newest first',
    [['Hour'], ['Running', 'n'], ['In all', 'n'], ['Launched', 'n'], ['What is known'], ['Source']]);
  const node = el('div', {}, heading('Overview', choice('What the bars show', bars, by, (v) => {
    keep({ bars: by = v });
    picture.draw(drawn, by === 'status');
  }), choice('How far back', ranges, hours,
    (v) => {
      hours = v;
      keep({ hours: v === '24' ? '' : v });
      refresh();
    })),
    nothing, el('section', { class: 'card', 'aria-label': 'Servers per hour' }, now, picture.node,
      el('details', {}, el('summary', {}, 'The same as a table'), list.node,
        button('Save as CSV', save, { kind: 'quiet' }))),
    el('section', { class: 'card' }, el('h2', {}, 'Quota'), quota));

  /** save writes the hours that are shown into a file. */
  function save() {
    const lines = drawn.map((h) => [h.hour, h.running, h.total, h.launched, h.uncertain, h.source].join(','));
    const text = ['hour,running,total,launched,uncertain,source', ...lines, ''].join('\r\n');
    const href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
    const link = el('a', { href, download: 'servers.csv' });
    link.click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  }

  async function load() {
    const requested = hours;
    const [stats, resources] = await Promise.all([get(`/v1/stats?hours=${requested}`),
      call('GET', '/v1/resources?kinds=quota', undefined, true).catch(() => null)]);
    if (requested !== hours) return false;
    if (resources?.quota) gauges(resources.quota);
    const used = resources?.quota?.instances, now = JSON.stringify([stats, used]);
    if (now !== sign) draw(stats, used);
    sign = now;
    return false;
  }

  function draw(stats, used) {
    const known = stats.hours.filter((h) => h.running !== null);
    const last = known.at(-1), peak = known.reduce((a, h) => (!a || h.running > a.running ? h : a), null);
    const lost = stats.hours.length - known.length, rebuilt = known.filter((h) => h.source === 'rebuilt').length;
    const figure = (name, value, unit, below) => el('div', {}, el('p', { class: 'soft' }, name),
      el('p', { class: 'big' }, value, ' ', el('small', { class: 'soft' }, unit)), el('p', { class: 'soft' }, below));
    set(now, used ? figure('Servers now', used.used, used.max >= 0 ? `of ${used.max} allowed` : '',
      'in the chart from the next full hour on') : null,
      last ? figure('Running', last.running, `of ${last.total}${last.uncertain ? `, ${last.uncertain} uncertain` : ''}`,
        `${clock(last.hour)} UTC`) : null,
      peak ? figure('Most running', peak.running, `of ${peak.total}`, `${clock(peak.hour)} UTC`) : null,
      figure('Hours known', stats.hours.length - lost, `of ${stats.hours.length}`,
        `${rebuilt} rebuilt, ${lost} missing`));
    picture.draw(drawn = stats.hours, by === 'status');
    set(list.body, [...stats.hours].reverse().map((h) => list.row(clock(h.hour), h.running ?? '–', h.total ?? '–',
      h.launched ?? '–', words(h), h.source)));
    set(nothing, last?.total || used?.used ? null : empty(last ? `No servers at ${clock(last.hour)} UTC`
      : 'Nothing was counted yet',
      'Servers are counted at every full hour: one that was launched since is in the chart from the next one on, ',
      'and already in ', el('a', { href: '#/servers' }, 'Servers'), '. ',
      el('a', { href: '#/launch' }, 'Launch one'), '.'));
  }

  const gauges = (q) => set(quota, bar('Servers', q.instances.used, q.instances.max),
    bar('vCPUs', q.vcpus.used, q.vcpus.max), bar('Memory', q.ram_mb.used, q.ram_mb.max, ' MiB'));
  return { node, load };
}
