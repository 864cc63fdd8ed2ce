// The request log: every request of the project, refused ones too.
import { el, set, button, heading, table, keyed, empty, clock } from './dom.js';
import { listing } from './api.js';

const changes = (r) => !['GET', 'HEAD', 'OPTIONS'].includes(r.method) && !r.path.startsWith('/console/');

export function view({ refresh }) {
  const pages = listing('requests');
  const again = () => { pages.reset(); refresh(); };
  const select = (label, options) => el('select', { 'aria-label': label, onchange: again }, options.map(([v, t]) => el('option', { value: v }, t)));
  const kind = select('Which', [['', 'All requests'], ['changes', 'Changes only'], ['errors', 'Errors only']]);
  const since = select('Since', [['', 'Any time'], ['15', 'Last 15 minutes'], ['60', 'Last hour'], ['1440', 'Last day']]);
  const list = table('Requests of the project, the newest first', [['When (UTC)'], ['Request', 'mono wrap'], ['Status', 'n'], ['Code'], ['ms', 'n'], ['Function', 'aside'], ['Request id', 'mono aside']]);
  list.node.hidden = true;
  const nothing = el('div'), said = el('p', { class: 'soft' });
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const node = el('div', {}, heading('Requests', kind, since), said, list.node, nothing, more);

  const row = (r) => list.row(clock(r.at, true), [el('b', {}, r.method), ` ${r.path}`], el('span', { class: r.status >= 400 ? 'error' : '' }, r.status),
    r.code || '', r.ms, r.function || '–', el('span', { title: r.request_id }, r.request_id.slice(4, 12)));

  async function load() {
    const from = since.value ? `?since=${new Date(Date.now() - since.value * 60000).toISOString()}` : '';
    const read = await pages.load(`/v1/requests${from}`);
    const rows = read.filter((r) => !kind.value || (kind.value === 'errors' ? r.status >= 400 : changes(r)));
    list.node.hidden = !rows.length;
    keyed(list.body, rows, (r) => r.id, row);
    more.hidden = !pages.rest;
    set(said, kind.value ? `${rows.length} of the ${read.length} requests read` : '');
    set(nothing, rows.length ? null : empty('No such requests', pages.rest ? 'Not among those read so far.' : 'Nothing of the kind is in the log.'));
    return false;
  }
  return { node, load };
}
