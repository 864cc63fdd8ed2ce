// Orders of servers: those that are running first, and one of them as it goes.
import { el, set, heading, table, empty, clock, announce, button } from './dom.js';
import { swap, keyed, age } from './lists.js';
import { get, listing } from './api.js';
import { secret } from './dialogs.js';
import { mark, inMotion } from './state.js';

let handed = null; // the answer to an order that was just placed: the only one that may hold a private key
let keyless = ''; // the order whose private key was in an answer that got lost

/** handOver gives the answer to a new order to the view of that order. wantsKey: a key was to be made. */
export const handOver = (order, wantsKey) => {
  handed = order;
  keyless = wantsKey && !order.private_key ? order.id : '';
};

export function view({ id, refresh }) {
  return id ? one(id) : all(refresh);
}

const sum = (order) => {
  const counts = {};
  order.instances.forEach((i) => { counts[i.state] = (counts[i.state] || 0) + 1; });
  return Object.entries(counts).map(([state, n]) => `${n} ${state}`).join(', ') || 'none left';
};

const names = (order) => {
  const [first, ...others] = order.instances;
  return first ? `${first.name}${others.length ? ` and ${others.length} more` : ''}` : `order ${order.id.slice(-8)}`;
};

function all(refresh) {
  const pages = listing('orders');
  const list = table('Orders of the project, running ones first',
    [['Order'], ['Status'], ['Instances'], ['What went wrong', 'wrap'], ['Age', 'n']]);
  list.node.hidden = true;
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const node = el('div', {}, heading('Orders', el('a', { class: 'button primary', href: '#/launch' }, 'Launch')),
    list.node, nothing, more);
  const row = (order) => list.row(el('a', { href: `#/orders/${order.id}`, 'data-key': 'open' }, names(order)),
    mark(order.status), sum(order),
    [...new Set([order, ...order.instances].filter((i) => i.error).map((i) => i.error.detail))].slice(0,
      2).map((text) => el('span', { class: 'error' }, text)), age(order.created_at));

  async function load() {
    const orders = await pages.load('/v1/launch');
    orders.sort((a, b) => (b.status === 'running') - (a.status === 'running'));
    list.node.hidden = !orders.length;
    keyed(list.body, orders, (o) => o.id, row);
    more.hidden = !pages.rest;
    set(nothing, orders.length ? null
      : empty('No orders yet', 'An order is what a launch requests: one server or many.'));
    return orders.some((o) => inMotion(o.status));
  }
  return { node, load };
}

function one(id) {
  const head = el('div', {}, heading('Order')), about = el('p', { class: 'soft' });
  const list = table('Instances of the order', [['Name'], ['State'], ['Floating IP', 'mono'],
    ['Server', 'mono'], ['What went wrong', 'wrap']]);
  list.node.hidden = true;
  const end = el('div');
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/orders' }, 'Orders')), head, about,
    keyless === id ? el('p', { class: 'note bad', role: 'alert' },
      'The answer with the private key got lost, and no one has the key: delete these servers, and launch them again.')
      : null, list.node, end);
  let before = '', states = new Map();

  const row = (i) => list.row(i.name, mark(i.state), i.floating_ip, i.server_id
    ? el('a', { href: `#/servers/${i.server_id}`, 'data-key': 'open' }, i.server_id) : '–',
    i.error ? el('span', { class: 'error' }, i.error.detail) : '');

  function draw(order) {
    if (before !== order.status) {
      swap(head, heading(names(order), mark(order.status)));
      set(about, 'Ordered ', age(order.created_at), ' ago, ', clock(order.created_at, true), ' UTC. Order ',
        el('span', { class: 'mono' }, order.id));
      if (before) announce(`The order is ${order.status.replace('_', ' ')}.`);
      before = order.status;
    }
    list.node.hidden = !order.instances.length;
    const said = order.instances.filter((i) => states.has(i.id) && states.get(i.id) !== i.state).map((i) =>
      `${i.name}: ${i.state}`);
    if (said.length) announce(said.length > 3 ? `${said.length} instances have changed` : said.join('. '));
    states = new Map(order.instances.map((i) => [i.id, i.state]));
    keyed(list.body, order.instances, (i) => i.id, row);
    const stuck = order.instances.some((i) => i.error?.code === 'interrupted');
    set(end, order.error ? el('p', { class: 'note bad' }, order.error.detail) : null, order.status === 'running' &&
      !stuck ? el('p', { class: 'soft' }, 'This goes on automatically; you may leave.') : null,
      stuck ? el('p', { class: 'note' },
        'The launch was interrupted. Send the same order again, with the same id, to finish it.') : null);
    return inMotion(order.status);
  }

  async function load() {
    if (handed?.id === id) {
      const { private_key: key, ...order } = handed;
      handed = null;
      draw(order);
      if (key) secret('The private key',
        'This is shown once and kept nowhere. Save it now: no one can give it to you again.', key, `cloudfn-${id}.pem`);
    }
    try {
      return draw(await get(`/v1/launch/${id}`));
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      set(end, empty('There is no such order', problem.message));
      return false;
    }
  }
  return { node, load };
}
