// The request log: every request of the project, refused ones too.
import { el, set, button, heading, table, empty, clock, say } from './dom.js';
import { keyed } from './lists.js';
import { listing, download } from './api.js';
import { filter, keep } from './address.js';

export function view({ refresh }) {
  const pages = listing('requests');
  const reload = () => {
    pages.reset();
    keep({ kind: kind.value, since: since.value, whose: whose.value });
    refresh(true);
  };
  const select = (name, label, options) => {
    const node = el('select', { 'aria-label': label, onchange: reload },
      options.map(([v, t]) => el('option', { value: v }, t)));
    if (options.some(([v]) => v === filter(name))) node.value = filter(name);
    return node;
  };
  const kind = select('kind', 'Which', [['changes', 'Changes'], ['errors', 'Errors'], ['all', 'All requests']]);
  const since = select('since', 'Since', [['', 'Any time'], ['15', 'Last 15 minutes'], ['60', 'Last hour'],
    ['1440', 'Last day']]);
  const whose = select('whose', 'Whose', [['', 'Of this project'], ['any', 'Through its connections']]);
  const list = table('Requests of the project, the newest first',
    [['When (UTC)'], ['Request', 'mono wrap'], ['Status', 'n'], ['Who'], ['Code'], ['ms', 'n'], ['Function', 'aside'],
    ['Request id', 'mono aside']]);
  list.node.hidden = true;
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const node = el('div', {}, heading('Requests', whose, kind, since,
    button('Export CSV', save, { kind: 'quiet', key: 'export' })), list.node, nothing, more);

  const row = (r) => list.row(clock(r.at, true), [el('b', {}, r.method), ` ${r.path}`],
    el('span', { class: r.status >= 400 ? 'error' : '' }, r.status),
    el('span', { title: `user ${r.user_id}, project ${r.project_id}${r.connection_id ? `,
      through the connection ${r.connection_id}` : ''}` }, r.user_name || r.user_id.slice(0, 8)),
    r.count > 1 ? `${r.code} × ${r.count}` : r.code || '', r.ms, r.function || '–',
    el('span', { title: r.request_id }, r.request_id.slice(4, 12)));

  function path() {
    const query = new URLSearchParams();
    if (since.value) query.set('since', new Date(Date.now() - since.value * 60000).toISOString());
    if (whose.value) query.set('acted_through', whose.value);
    if (kind.value !== 'all') query.set('only', kind.value);
    return query.size ? `/v1/requests?${query}` : '/v1/requests';
  }

  async function save() {
    try {
      const link = el('a', { href: URL.createObjectURL(await download(path(), 'text/csv')), download: 'requests.csv' });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    } catch (problem) {
      say(problem.message);
    }
  }

  async function load() {
    const rows = await pages.load(path());
    list.node.hidden = !rows.length;
    keyed(list.body, rows, (r) => r.id, row);
    more.hidden = !pages.rest;
    set(nothing, rows.length ? null : empty('No such requests', 'Nothing of the kind is in the log.'));
    return false;
  }
  return { node, load };
}
