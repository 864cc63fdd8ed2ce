// Leases: a calendar of the project's, one of them with its steps, and what may be done with it.
import { el, set, button, heading, table, empty, clock, choice, showFor } from './dom.js';
import { swap, facts, keyed, age } from './lists.js';
import { get, listing, versionOf } from './api.js';
import { mark, kindOf, inMotion } from './state.js';
import { timeline, during } from './timeline.js';
import { acts, ends, isEnding, isSoon, left, release } from './leaseacts.js';
import { volumeEnd, volumeText } from './leasevolumes.js';
import { view as form } from './leaseform.js';
import { filter, keep } from './address.js';
import { view as hosts } from './hosts.js';

const steps = { start: 'Start', before_end: 'Warning', end: 'End' };
const open = ['pending', 'starting', 'active', 'ending', 'error'], ended = 'ended,cancelled';

export function view({ id, me, refresh, go }) {
  if (id === 'new') return form({ go });
  if (id === 'hosts') return hosts({ refresh });
  return id ? one(id, me, refresh) : all(me, refresh);
}

const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;

/** reserves says what a lease reserves. */
function reserves(lease) {
  const of = (type) => lease.reservations.filter((r) => r.type === type);
  const hosts = of('host').reduce((n, r) => n + (r.hosts ?? r.min), 0);
  return [[hosts, 'host'], [of('instance').length, 'instance'], [of('volume').length, 'volume']]
    .filter(([n]) => n).map(([n, word]) => plural(n, word)).join(', ');
}

/** troubles are what is wrong with a lease, in words. */
const troubles = (lease) => [lease.reason?.detail,
  lease.degraded ? 'A reserved host is down or takes no new servers, and no other one is free.' : null].filter(Boolean);

function all(me, refresh) {
  const pages = listing('leases');
  let which = filter('which') === ended ? ended : open.join(',');
  const calendar = timeline('Leases of the project');
  calendar.node.hidden = true;
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const node = el('div', {}, heading('Leases',
    choice('Which', [[open.join(','), 'Open'], [ended, 'Over']], which, (v) => {
      which = v;
      keep({ which: which === ended && ended });
      refresh(true);
    }),
    showFor(me.operator, el('a', { class: 'button', href: '#/leases/hosts' }, 'Hosts')),
    el('a', { class: 'button primary', href: '#/leases/new' }, 'New lease')), calendar.node, nothing, more);

  const track = (lease) => {
    const warning = lease.events.find((e) => e.type === 'before_end');
    const kind = kindOf(lease.status);
    return { id: lease.id, sign: lease.updated_at,
      head: el('div', {}, el('a', { href: `#/leases/${lease.id}`, 'data-key': 'open' }, lease.name), ' ',
        mark(lease.status)),
      acts: acts(lease, refresh, true),
      words: [[reserves(lease), during(lease.start, lease.end),
        lease.warnings && lease.isolation !== 'proven' ? 'isolation unproven' : ''].filter(Boolean).join(', '),
        troubles(lease).map((text) => el('p', { class: 'error' }, text))],
      bars: [{ from: lease.start, until: lease.end, kind, warn: warning?.due_at,
        text: `${lease.name}: ${lease.status}, ${during(lease.start, lease.end)}` }] };
  };

  async function load() {
    const requested = which;
    const leases = await pages.load(`/v1/leases?status=${requested}`);
    if (requested !== which) return false;
    leases.sort((a, b) => new Date(a.start) - new Date(b.start));
    calendar.node.hidden = !leases.length;
    calendar.show(leases.map(track));
    more.hidden = !pages.rest;
    set(nothing, leases.length ? null : requested !== open.join(',')
      ? empty('No lease has ended', 'Leases that ended or were cancelled are listed here.')
      : empty('No leases', 'A lease reserves instances or whole hosts for a period, and ends automatically.'));
    return leases.some((l) => inMotion(l.status));
  }
  return { node, load };
}

function one(id, me, refresh) {
  const head = el('div', {}, heading('Lease')), body = el('div', { class: 'stack' }), nothing = el('div');
  const done = table('Steps of the lease', [['Step'], ['Due'], ['Status'], ['At']]);
  const list = table('Reservations', [['Reserves', 'wrap'], ['Status'], ['Id', 'mono wrap'], ['Flavors', 'wrap'],
    ['What went wrong', 'wrap']]);
  const titles = [el('h2', {}, 'Steps'), el('h2', {}, 'Reservations')];
  const parts = [titles[0], done.node, titles[1], list.node];
  parts.forEach((part) => { part.hidden = true; });
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/leases' }, 'Leases')), head, body, nothing,
    parts);
  const path = `/v1/leases/${id}`;
  let sign = '';

  function draw(lease) {
    const free = release(lease, refresh);
    swap(head, heading(lease.name, mark(lease.status), acts(lease, refresh), free && showFor(me.operator, free)));
    const notes = [...troubles(lease), ...(lease.warnings || [])];
    set(body, notes.map((text) => el('p', { class: 'note bad' }, text)), el('div', { class: 'card' }, facts([
      ['Period', [during(lease.start, lease.end), ' ', left(lease)]], ['Reserves', reserves(lease)],
      ['At the end', ends[lease.on_end] || 'its instances are left as they are'], ['Isolation', lease.isolation],
      ['Order', lease.order_id && el('a', { href: `#/orders/${lease.order_id}` }, lease.order_id.slice(-8))],
      ['Made', [age(lease.created_at), ' ago']], ['Id', el('span', { class: 'mono' }, lease.id)]])));
  }

  function what(lease, r) {
    if (r.type === 'instance') return el('span', {}, 'Instance ', el('span', { class: 'mono' }, r.instance_id));
    if (r.type === 'volume') {
      const isOpen = ['pending', 'starting', 'active'].includes(lease.status) || isEnding(lease);
      return el('span', { class: 'row' }, volumeText(r),
        isOpen && r.status !== 'ended' && volumeEnd(lease, r, refresh));
    }
    return `${plural(r.hosts ?? 0, 'host')}, requested ${r.min === r.max ? r.min : `${r.min} to ${r.max}`}`;
  }

  async function load() {
    let lease;
    try {
      lease = await get(path);
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      set(nothing, empty('There is no such lease', problem.message));
      return false;
    }
    if (JSON.stringify(lease) !== sign) draw(lease);
    sign = JSON.stringify(lease);
    parts.forEach((part) => { part.hidden = false; });
    keyed(done.body, lease.events, (e) => e.type, (e) => done.row(steps[e.type], `${clock(e.due_at)} UTC`,
      mark(e.status), e.at ? `${clock(e.at, true)} UTC` : '–'));
    const ofVersion = lease.reservations.map((r) => ({ ...r, version: versionOf(lease) })); // for what changes it
    keyed(list.body, ofVersion, (r) => r.id, (r) => list.row(what(lease, r), mark(r.status), r.id,
      (r.flavors || []).map((f) => f.name).join(', ') || '–',
      r.reason ? el('span', { class: 'error' }, r.reason.detail) : null));
    return inMotion(lease.status) || isSoon(lease);
  }
  return { node, load };
}
