// What became of a server: its states with who caused them, and the requests about it.
import { el, table, clock, choice } from './dom.js';
import { keyed } from './lists.js';
import { get } from './api.js';
import { mark } from './state.js';

/** past shows the history of a server. Only one that is tracked has states. */
export function past() {
  const states = table('States of the server, the newest first',
    [['When (UTC)'], ['State'], ['Nova', 'aside'], ['Action'], ['By'], ['Addresses', 'mono aside']]);
  const requests = table('Requests about the server, the newest first',
    [['When (UTC)'], ['Request', 'mono wrap'], ['Answer', 'n'], ['By']]);
  let which = 'states', server = null;
  const kinds = choice('Which history', [['states', 'States'], ['requests', 'Requests']], which, (v) => {
    which = v;
    load(server).catch(() => {});
  });
  const node = el('section', { hidden: true }, el('div', { class: 'head' }, el('h2', {}, 'History'), kinds),
    states.node, requests.node);

  async function readStates() {
    const { events } = await get(`/v1/servers/history/${server.instance.id}?limit=100`);
    const all = events.map((e, n) => ({ ...e, isLast: n === 0 })); // only the last state may still move
    keyed(states.body, all, (e) => e.id, ({ at, type, data, isLast }) => states.row(clock(at, true),
      data.state && isLast ? mark(data.state) : data.state || type, data.status, data.actor?.action,
      data.actor ? data.actor.user_name || data.actor.user_id : '–',
      (data.addresses || []).map((a) => a.ip).join(' ')));
    return events.length;
  }

  // The request log is looked through as far as one page of it goes.
  async function readRequests() {
    const all = (await get('/v1/requests?only=changes&limit=1000')).requests;
    const isDry = (r) => r.method === 'DELETE' && r.status === 200;
    const about = all.filter((r) => !isDry(r) &&
      [server.id, server.instance?.id].some((x) => x && r.path.includes(x)));
    keyed(requests.body, about, (r) => r.id, (r) => requests.row(clock(r.at, true),
      `${r.method} ${r.path.replace(server.id, '…')}`, r.status, r.user_name || r.user_id));
    return about.length;
  }

  async function load(of) {
    server = of;
    kinds.hidden = !server.instance;
    const hasStates = which === 'states' && server.instance;
    const requested = which, found = await (hasStates ? readStates() : readRequests());
    if (requested !== which || of !== server) return; // an older answer
    states.node.hidden = !hasStates;
    requests.node.hidden = hasStates || !found;
    node.hidden = !server.instance && !found;
  }
  return { node, load };
}
