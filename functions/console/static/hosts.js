// For the cloud's admins: which host is whose and when, and which can be reserved.
import { el, set, button, heading, table, empty, say } from './dom.js';
import { keyed, age, memory } from './lists.js';
import { listing, call } from './api.js';
import { ask } from './dialogs.js';
import { mark } from './state.js';
import { timeline, during } from './timeline.js';

const word = { no: 'not reservable', joining: 'being made reservable', yes: 'reservable', leaving: 'being opened' };

export function view({ refresh }) {
  const calendar = timeline('Reservations of hosts');
  const list = table('Hosts of the cloud', [['Host'], ['Status'], ['Zone'], ['Servers', 'n'], ['Size'],
    ['Reservations', 'wrap'], ['Isolation'], ['Actions', 'acting']]);
  const nothing = el('div');
  calendar.node.hidden = list.node.hidden = true;
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/leases' }, 'Leases')), heading('Hosts'),
    calendar.node, list.node, nothing);

  const change = (host, verb, done) => async () => {
    await call('POST', `/v1/nodes/${encodeURIComponent(host.name)}/${verb}`);
    say(`${host.name} ${done}.`);
    refresh();
  };
  const reserve = (host) => () => ask(`Make ${host.name} reservable?`,
    'From now on only servers of active reservations land on it.', 'Make it reservable',
    change(host, 'reservable', 'becomes reservable'));
  const open = (host) => () => ask(`Open ${host.name} again?`,
    'Servers of every project may land on it from then on.', 'Open it',
    change(host, 'unreservable', 'is opened again'));

  const test = (host) => async () => {
    const { isolation, isolation_detail: detail } = await call('POST',
      `/v1/nodes/${encodeURIComponent(host.name)}/self-test`);
    say(`The isolation is ${isolation}: ${detail}.`);
    refresh();
  };

  const row = (host) => list.row(host.name, mark(host.status), host.zone || '–', host.servers,
    host.capacity.vcpus ? `${host.capacity.vcpus} vCPU, ${memory(host.capacity.ram_mb)}` : '–',
    [word[host.reservable], host.reason ? ` (${host.reason})` : ''],
    [host.isolation, host.tested_at ? [', tested ', age(host.tested_at), ' ago'] : ''],
    el('div', { class: 'acts' }, ['yes', 'joining'].includes(host.reservable)
      ? [host.reservable === 'yes' ? button('Test', test(host), { kind: 'quiet', key: 'test',
        label: `Test the isolation of ${host.name}` }) : null,
      button('Open', open(host), { kind: 'quiet', key: 'open', label: `Open ${host.name} again` })]
      : button('Make reservable', reserve(host),
        { kind: 'quiet', key: 'reserve', label: `Make reservable: ${host.name}` })));

  const tracks = (hosts, allocations) => [...new Set([...hosts.map((h) => h.name), ...allocations.map((a) => a.host)])]
    .map((name) => {
      const own = allocations.filter((a) => a.host === name);
      return { id: name, sign: JSON.stringify(own), head: el('b', {}, name),
        words: own.length ? own.map((a) => el('div', {},
          `project ${a.project_id.slice(0, 8)}, lease ${a.lease_id.slice(-8)}: ${during(a.start, a.end)}`)) : 'free',
        bars: own.map((a) => ({ from: a.start, until: a.end, text: `${name}: ${during(a.start, a.end)}`,
          kind: a.released_at ? 'still' : a.prepared_at ? 'good' : 'waiting' })) };
    });

  async function load() {
    let hosts, allocations;
    try {
      [hosts, allocations] = await Promise.all([listing('nodes', Infinity).load('/v1/nodes'),
        listing('allocations', Infinity).load('/v1/leases/allocations')]);
    } catch (problem) {
      if (problem.status !== 403) throw problem;
      set(nothing, empty('These are the operator\'s', problem.message));
      return false;
    }
    set(nothing);
    const reservable = hosts.filter((h) => h.reservable !== 'no');
    calendar.node.hidden = !reservable.length && !allocations.length;
    calendar.show(tracks(reservable, allocations));
    list.node.hidden = !hosts.length;
    keyed(list.body, hosts, (h) => h.name, row);
    return hosts.some((h) => ['joining', 'leaving'].includes(h.reservable));
  }
  return { node, load };
}
