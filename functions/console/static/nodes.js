// For the cloud's admins: its hosts of compute, how full they are, and taking one out for maintenance.
import { el, set, button, heading, table, empty, bar, say } from './dom.js';
import { swap, facts, keyed, age } from './lists.js';
import { get, call, listing } from './api.js';
import { dialog, confirm, ask, check } from './dialogs.js';
import { mark } from './state.js';

const path = (name, verb = '') => `/v1/nodes/${encodeURIComponent(name)}${verb && `/${verb}`}`;
const count = (n) => `${n} server${n === 1 ? '' : 's'}`;
const isDraining = (node) => node.drain?.state === 'running';

export function view({ id, refresh }) {
  return id ? one(id, refresh) : all(refresh);
}

/** gauges show how much of a node is used: nothing of one that Placement does not know. */
const gauges = (node) => (!node.capacity.vcpus && !node.capacity.ram_mb ? null : el('div', { class: 'gauges' },
  bar('vCPUs', node.used.vcpus, node.capacity.vcpus), bar('Memory', node.used.ram_mb, node.capacity.ram_mb, ' MiB'),
  bar('Disk', node.used.disk_gb, node.capacity.disk_gb, ' GiB')));

/** progress shows how far a drain is. */
function progress(drain) {
  const total = drain.done + drain.left + drain.skipped.length;
  const moved = ['Moved', drain.skipped.length && `${drain.skipped.length} skipped`].filter(Boolean).join(', ');
  return el('div', { class: 'stack' }, el('div', { class: 'gauges progress' }, bar(moved, drain.done, total)),
    drain.reason ? el('p', { class: 'note' }, drain.reason) : null);
}

/** state says in words whether Nova places servers on a node. */
const state = (node) => (node.schedulable ? 'schedulable'
  : { cloudfn: 'cordoned', other: 'disabled by another admin' }[node.cordoned_by] || 'not schedulable');

/** acts are the buttons for what may be done with a node. */
function acts(node, refresh) {
  const name = node.name;
  const act = async (verb, body, done) => {
    await call('POST', path(name, verb), body);
    say(`${name} ${done}.`);
    refresh();
  };
  const cordon = () => {
    const force = lastToo();
    confirm(`Cordon ${name}?`, 'Nova places no new servers on it. Its servers stay.', 'Cordon',
      () => act('cordon', { force: force.input.checked }, 'is cordoned'), force.node);
  };
  const uncordon = () => ask(`Uncordon ${name}?`, 'Nova may place servers on it again.', 'Uncordon',
    () => act('uncordon', undefined, 'takes servers again'));
  const cancel = () => confirm(`Stop draining ${name}?`,
    'Servers that are on their way arrive, and no other one leaves. The host stays cordoned.', 'Stop draining',
    () => act('cancel-drain', undefined, 'is not drained any more'));
  return el('div', { class: 'acts' },
    node.schedulable ? button('Cordon', cordon, { key: 'cordon', kind: 'quiet', label: `Cordon ${name}` }) : null,
    !node.schedulable && node.cordoned_by === 'cloudfn' && !isDraining(node)
      ? button('Uncordon', uncordon, { key: 'uncordon', kind: 'quiet', label: `Uncordon ${name}` }) : null,
    isDraining(node) ? button('Stop draining', cancel, { key: 'drain', kind: 'quiet', label: `Stop draining ${name}` })
      : node.status === 'down' ? null
        : button('Drain', () => drain(name, act), { key: 'drain', kind: 'quiet', label: `Drain ${name}` }));
}

/** lastToo confirms whether even the last host of a zone may be taken. */
const lastToo = () => check('Even if it is the last host of its kind, ordinary or reservable, in its zone (force)');

/** drain shows what a drain would do before it begins. */
function drain(name, act) {
  dialog(`Drain ${name}?`, (close) => {
    const said = el('p', { class: 'error', role: 'alert' });
    const plan = el('div', {}, el('p', { class: 'soft' }, 'Reading…'));
    const force = lastToo();
    const go = button('Drain', async () => {
      go.disabled = true;
      try {
        await act('drain', { force: force.input.checked }, 'is drained');
        close();
      } catch (problem) {
        set(said, problem.message);
        go.disabled = false;
      }
    }, { kind: 'danger' });
    go.disabled = true; // until the plan is shown
    const verbs = { live: 'moves while it runs', cold: 'moves while it is stopped' };
    call('POST', `${path(name, 'drain')}?dry_run=true`, { force: true }).then((answer) => {
      const list = table(`What happens to the servers of ${name}`, [['Server'], ['What happens', 'wrap']]);
      const servers = answer.drain.servers || []; // absent of an empty host
      set(plan, servers.length ? list.node : el('p', {}, 'It has no servers.'));
      keyed(list.body, servers, (s) => s.server_id, (s) => list.row(s.name || s.server_id,
        [verbs[s.method] || (s.state === 'pending' ? 'waits' : 'stays'), s.reason ? `: ${s.reason}` : '',
          { no: ', and no other host has room', unknown: ', if another host has room' }[s.room] || '']));
      go.disabled = false;
    }).catch((problem) => set(plan, el('p', { class: 'error' }, problem.message)));
    return [el('p', {}, 'It is cordoned, and then its servers move to other hosts.'), plan, force.node, said,
      el('div', { class: 'row end' }, button('Cancel', close), go)];
  });
}

function all(refresh) {
  const pages = listing('nodes');
  const list = el('div', { class: 'cards' }), nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const hosts = el('a', { class: 'button', href: '#/leases/hosts' }, 'Reservations of hosts');
  const node = el('div', {}, heading('Nodes', hosts), list, nothing, more);

  const card = (n) => el('section', { class: 'card' },
    el('div', { class: 'head' }, el('h2', {}, el('a', { href: `#/nodes/${n.name}`, 'data-key': 'open' }, n.name)),
      el('div', { class: 'beside' }, mark(n.status), mark(n.schedulable ? 'active' : 'suspended', state(n)),
        acts(n, refresh))),
    gauges(n), n.drain && isDraining(n) ? progress(n.drain) : null,
    el('p', { class: 'soft' },
      [count(n.servers), n.zone && `zone ${n.zone}`, n.status_reason].filter(Boolean).join(', ')));

  async function load() {
    let nodes;
    try {
      nodes = await pages.load('/v1/nodes');
    } catch (problem) {
      if (problem.status !== 403) throw problem;
      set(nothing, empty('These are the operator\'s', problem.message));
      return false;
    }
    keyed(list, nodes, (n) => n.name, card);
    more.hidden = !pages.rest;
    set(nothing, nodes.length ? null : empty('No nodes', 'Nova shows no host of compute.'));
    return nodes.some(isDraining);
  }
  return { node, load };
}

function one(name, refresh) {
  const head = el('div', {}, heading(name)), body = el('div', { class: 'stack' }), nothing = el('div');
  const list = table(`Servers of the drain of ${name}`, [['Server'], ['State'], ['How'], ['Host'], ['Why', 'wrap']]);
  const title = el('h2', {}, 'Servers of the drain');
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/nodes' }, 'Nodes')), head, body, nothing,
    title, list.node);
  title.hidden = list.node.hidden = true;
  let sign = '';

  function draw(n) {
    const isOpen = mark(n.schedulable ? 'active' : 'suspended', state(n));
    swap(head, heading(n.name, mark(n.status), isOpen, acts(n, refresh)));
    set(body, n.status_reason ? el('p', { class: 'note bad' }, n.status_reason) : null,
      el('div', { class: 'card stack' }, gauges(n), facts([['Servers', count(n.servers)], ['Zone', n.zone],
        ['Region zone', n.region_zone], ['Network zone', n.network_zone],
        ['Reported', n.heartbeat_at && [age(n.heartbeat_at), ' ago']],
        ['Labels', Object.entries(n.labels || {}).map(([k, v]) => `${k}=${v}`).join(', ')],
        ['Providers', (n.providers || []).join(', ')], ['Disabled because', n.disabled_reason],
        ['Cordoned automatically', n.auto_cordon_after && `after ${n.auto_cordon_after}`],
        ['Drained automatically', n.auto_drain_after && `after ${n.auto_drain_after}`],
        ['Reservable', n.reservable],
        ['Lease', n.lease && `${n.lease.id.slice(-8)} from ${n.lease.start} to ${n.lease.end}`],
        ['Isolation', n.isolation],
        ['Isolation tested', n.tested_at && [age(n.tested_at), ' ago: ', n.isolation_detail]]])),
      n.drain ? el('div', { class: 'card stack' }, el('p', {}, mark(n.drain.state, `drain ${n.drain.state}`)),
        progress(n.drain)) : null);
  }

  async function load() {
    let found;
    try {
      found = await get(path(name));
    } catch (problem) {
      if (![403, 404].includes(problem.status)) throw problem;
      set(nothing, empty(problem.status === 403 ? 'These are the operator\'s' : 'There is no such node',
        problem.message));
      return false;
    }
    if (JSON.stringify(found) !== sign) draw(found);
    sign = JSON.stringify(found);
    const servers = found.drain?.servers || [];
    title.hidden = list.node.hidden = !servers.length;
    keyed(list.body, servers, (s) => s.server_id, (s) => list.row(s.name || s.server_id, mark(s.state),
      s.method, s.target, s.reason));
    return isDraining(found);
  }
  return { node, load };
}
