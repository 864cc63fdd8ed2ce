// The project's volumes.
import { el, set, button, heading, table, empty, say } from './dom.js';
import { keyed, age } from './lists.js';
import { call, listing } from './api.js';
import { confirm, ask, labelled } from './dialogs.js';

/** moving are Cinder's states that soon become others. */
const moving = ['creating', 'deleting', 'attaching', 'detaching', 'downloading', 'reserved'];

export function view({ refresh }) {
  const pages = listing('volumes');
  const list = table('Volumes of the project', [['Name', 'wrap'], ['Status'], ['GB', 'n'], ['Type', 'aside'],
    ['Servers', 'mono aside'], ['Id', 'mono aside'], ['Age', 'n'], ['Actions', 'acting']]);
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  list.node.hidden = more.hidden = true;
  const node = el('div', {}, heading('Volumes', button('New volume', create, { kind: 'primary' })), list.node, nothing,
    more);

  function create() {
    const name = el('input', { maxlength: 255, autocomplete: 'off', placeholder: 'data' });
    const size = el('input', { type: 'number', min: 1, inputmode: 'numeric', value: 10 });
    ask('New volume', '', 'Create', async () => {
      const made = await call('POST', '/v1/volumes', { name: name.value.trim(), size_gb: Number(size.value) });
      say(`${made.name || made.id} is being made.`);
      refresh();
    }, labelled('Name', name), labelled('Size in GB', size));
  }

  const row = (i) => list.row(i.name || i.id, i.status, String(i.size_gb), i.type, i.servers.join(' '), i.id,
    age(i.created_at), el('div', { class: 'acts' }, button('Delete',
      () => confirm(`Delete ${i.name || i.id}?`, 'What is on it is lost.', 'Delete', async () => {
        await call('DELETE', `/v1/volumes/${i.id}`);
        say(`${i.name || i.id} is being deleted.`);
        refresh();
      }), { kind: 'quiet danger', key: 'delete', label: `Delete ${i.name || i.id}` })));

  async function load() {
    const items = await pages.load('/v1/volumes');
    list.node.hidden = !items.length;
    keyed(list.body, items, (i) => i.id, row);
    more.hidden = !pages.rest;
    set(nothing, items.length ? null : empty('No volumes yet'));
    return items.some((i) => moving.includes(i.status));
  }
  return { node, load };
}
