// The project's security groups.
import { el, set, button, heading, table, empty, say } from './dom.js';
import { keyed, age } from './lists.js';
import { call, listing } from './api.js';
import { confirm } from './dialogs.js';

const ports = (rule) => (rule.port_min === undefined ? '' : rule.port_max === undefined
  || rule.port_max === rule.port_min ? ` ${rule.port_min}` : ` ${rule.port_min}-${rule.port_max}`);
/** text is what a rule lets in. */
const text = (rule) => `${rule.protocol || 'all'}${ports(rule)} from ${rule.remote_cidr || rule.remote_group
  || 'everywhere'}`;

export function view({ refresh }) {
  const pages = listing('security_groups');
  const list = table('Security groups of the project', [['Name', 'wrap'], ['Lets in', 'wrap'],
    ['Description', 'wrap aside'], ['Id', 'mono aside'], ['Age', 'n'], ['Actions', 'acting']]);
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  list.node.hidden = more.hidden = true;
  const node = el('div', {}, heading('Security groups'), list.node, nothing, more);

  const row = (i) => list.row(i.name || i.id,
    i.rules.filter((r) => r.direction === 'ingress').map(text).join(', ') || 'nothing', i.description, i.id,
    age(i.created_at), el('div', { class: 'acts' }, button('Delete',
      () => confirm(`Delete ${i.name || i.id}?`, 'Its rules are deleted with it.', 'Delete', async () => {
        await call('DELETE', `/v1/security-groups/${i.id}`);
        say(`${i.name || i.id} is deleted.`);
        refresh();
      }), { kind: 'quiet danger', key: 'delete', label: `Delete ${i.name || i.id}` })));

  async function load() {
    const items = await pages.load('/v1/security-groups');
    list.node.hidden = !items.length;
    keyed(list.body, items, (i) => i.id, row);
    more.hidden = !pages.rest;
    set(nothing, items.length ? null : empty('No security groups yet'));
    return false;
  }
  return { node, load };
}
