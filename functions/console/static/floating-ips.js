// The project's floating IPs.
import { el, set, button, heading, table, empty, say } from './dom.js';
import { keyed, age } from './lists.js';
import { get, call, listing } from './api.js';
import { confirm, ask, labelled } from './dialogs.js';

export function view({ refresh }) {
  const pages = listing('floating_ips');
  const list = table('Floating IPs of the project', [['Address', 'mono'], ['Status'], ['Fixed address', 'mono'],
    ['Server', 'mono aside'], ['Description', 'wrap aside'], ['Id', 'mono aside'], ['Age', 'n'],
    ['Actions', 'acting']]);
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  list.node.hidden = more.hidden = true;
  const node = el('div', {}, heading('Floating IPs', button('New floating IP', () => create().catch((problem) =>
    say(problem.message)), { kind: 'primary' })), list.node, nothing, more);

  async function create() {
    const { networks } = await get('/v1/resources?kinds=networks');
    const network = el('select', {}, (networks || []).filter((n) => n.external).map((n) =>
      el('option', { value: n.id }, n.name || n.id)));
    ask('New floating IP', network.options.length ? '' : 'There is no external network.', 'Create', async () => {
      const made = await call('POST', '/v1/floating-ips', { network: network.value });
      say(`${made.address} is the project's.`);
      refresh();
    }, labelled('External network', network));
  }

  const row = (i) => list.row(i.address, i.status, i.fixed_address || '', i.server_id || '', i.description, i.id,
    age(i.created_at), el('div', { class: 'acts' }, button('Delete',
      () => confirm(`Delete ${i.address}?`, 'Others may get the address.', 'Delete', async () => {
        await call('DELETE', `/v1/floating-ips/${i.id}`);
        say(`${i.address} is deleted.`);
        refresh();
      }), { kind: 'quiet danger', key: 'delete', label: `Delete ${i.address}` })));

  async function load() {
    const items = await pages.load('/v1/floating-ips');
    list.node.hidden = !items.length;
    keyed(list.body, items, (i) => i.id, row);
    more.hidden = !pages.rest;
    set(nothing, items.length ? null : empty('No floating IPs yet'));
    return false;
  }
  return { node, load };
}
