// Declared resources: their conditions, what differs from the declaration, and their revisions.
import { el, set, swap, button, heading, table, facts, keyed, empty, age, clock, confirm, choice, say } from './dom.js';
import { get, call, listing } from './api.js';
import { mark, inMotion } from './state.js';

const path = (r) => `/v1/managed/${r.kind}/${r.name}`;
const link = (r) => `#/managed/${r.kind}.${r.name}`;
const kinds = [['', 'All'], ['VirtualMachineDeployment', 'Deployments'], ['VirtualMachine', 'Servers'],
  ['Volume', 'Volumes'], ['Image', 'Images'], ['Loadbalancer', 'Load balancers'], ['Secret', 'Secrets'],
  ['Configmap', 'Files']];
/** kindName is a kind that may be broken between its words. */
const kindName = (r) => r.kind.split(/(?=[A-Z])/).flatMap((word) => [el('wbr'), word]);
const labels = (r) => Object.entries(r.labels || {}).map(([k, v]) => `${k}=${v}`).join(', ');
const moves = (r) => inMotion(r.status) || ['pending', 'creating', 'updating', 'degraded'].includes(r.status);
const text = (value) => (value === undefined || value === null ? 'absent' : typeof value === 'string' ? value
  : JSON.stringify(value));

export function view({ id, refresh, go }) {
  const [, kind, name] = /^([A-Za-z]+)\.([\w-]+)$/.exec(id || '') || [];
  return name ? one({ kind, name }, refresh, go) : all(refresh);
}

const ready = (r) => (r.kind === 'VirtualMachineDeployment'
  ? `${r.members.filter((m) => m.status === 'ready').length} of ${r.spec.count}` : '');

function all(refresh) {
  const pages = listing('managed');
  let kind = '';
  const list = table('Managed resources of the project', [['Name'], ['Kind'], ['Status'], ['Ready'], ['Revision', 'n'],
    ['Labels', 'wrap'], ['What is wrong', 'wrap'], ['Age', 'n']]);
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = list.node.hidden = true;
  const node = el('div', {}, heading('Managed', choice('Which', kinds, kind, (v) => { kind = v; refresh(); })),
    list.node, nothing, more);
  const row = (r) => list.row(el('a', { href: link(r), 'data-key': 'open' }, r.name), kindName(r), mark(r.status),
    ready(r) || '–', r.revision, labels(r) || '–',
    r.status_reason && r.status !== 'ready' ? el('span', { class: 'error' }, r.status_reason) : null, age(r.created_at));

  async function load() {
    const asked = kind;
    const found = await pages.load(`/v1/managed${asked ? `?kind=${asked}` : ''}`);
    if (asked !== kind) return false;
    list.node.hidden = !found.length;
    keyed(list.body, found, (r) => r.id, row);
    more.hidden = !pages.rest;
    set(nothing, found.length ? null : empty(asked ? 'Nothing is declared of this kind' : 'Nothing is declared',
      'Declare servers, volumes and more in files, and apply them with ', el('code', {}, 'cloudfn apply -f'), '.'));
    return found.some(moves);
  }
  return { node, load };
}

/** flat lists the fields of a spec by their paths. */
function flat(value, at = '', out = {}) {
  if (value && typeof value === 'object' && !Array.isArray(value)) {
    for (const [key, inner] of Object.entries(value)) flat(inner, at ? `${at}.${key}` : key, out);
  } else out[at] = value;
  return out;
}

/** difference is what changed from one revision to another, field by field. */
function difference(from, to) {
  const old = flat(from?.spec || {}), now = flat(to.spec);
  return [...new Set([...Object.keys(old), ...Object.keys(now)])].sort()
    .filter((field) => JSON.stringify(old[field]) !== JSON.stringify(now[field]))
    .map((field) => ({ field, from: old[field], to: now[field] }));
}

function one(at, refresh, go) {
  const head = el('div', {}, heading(at.name)), body = el('div', { class: 'stack' }), nothing = el('div');
  const conditions = table('Conditions', [['Condition'], ['Status'], ['Reason'], ['Message', 'wrap'], ['Since', 'n']]);
  const drift = table('What others have changed', [['Field'], ['Declared', 'wrap'], ['Actual', 'wrap']]);
  const members = table('Members', [['Object', 'mono wrap'], ['Status'], ['Revision', 'n'], ['Node'],
    ['What is wrong', 'wrap']]);
  const revisions = table('Revisions', [['Revision'], ['Changes', 'wrap'], ['Made'], ['Actions', 'acting']]);
  const parts = [['Conditions', conditions], ['Drift', drift], ['Members', members], ['Revisions', revisions]]
    .map(([title, list]) => ({ list, title: el('h2', {}, title) }));
  parts.forEach((p) => { p.title.hidden = p.list.node.hidden = true; });
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/managed' }, 'Managed')), head, body, nothing,
    ...parts.map((p) => [p.title, p.list.node]));
  let sign = '', known = '';

  const remove = (r) => () => confirm(`Delete ${r.name}?`, 'What it has made in the cloud is deleted, too.', 'Delete',
    async () => {
      await call('DELETE', path(r));
      say(`${r.name} is being deleted.`);
      refresh();
    });
  const back = (r, number) => () => confirm(`Go back to revision ${number}?`,
    `A new revision of ${r.name} repeats it.`, 'Roll back', async () => {
      await call('POST', `${path(r)}/rollback`, { revision: number });
      say(`${r.name} goes back to revision ${number}.`);
      refresh();
    });

  function draw(r) {
    swap(head, heading(r.name, mark(r.status), r.status === 'deleting' ? null
      : button('Delete', remove(r), { kind: 'danger', key: 'delete' })));
    set(body, r.status_reason && r.status !== 'ready' ? el('p', { class: 'note bad' }, r.status_reason) : null,
      el('div', { class: 'card' }, facts([['Kind', kindName(r)], ['Ready', ready(r)],
        ['Revision', r.observed_revision === r.revision ? r.revision : `${r.revision}, real is ${r.observed_revision}`],
        ['Template', r.flavor], ['Labels', labels(r)], ['Repair', r.repair], ['Made', [age(r.created_at), ' ago']],
        ['Id', el('span', { class: 'mono' }, r.id)]])),
      el('details', {}, el('summary', {}, 'Declared'), el('pre', { class: 'card mono' }, JSON.stringify(r.spec, null, 2))));
  }

  function history(r, all) {
    const older = (revision) => all.find((o) => o.revision < revision.revision);
    keyed(revisions.body, all.map((v) => ({ ...v, current: v.revision === r.revision, fields: difference(older(v), v) })),
      (v) => v.revision, (v) => revisions.row(`${v.revision}${v.current ? ' (declared)' : ''}`,
        [v.rolled_back ? `repeats ${v.rolled_back}` : '', ...(older(v) || v.revision === 1 ? v.fields : []).map((f) =>
          el('div', {}, el('span', { class: 'mono' }, f.field), ': ',
            older(v) ? `${text(f.from)} → ${text(f.to)}` : text(f.to)))],
        `${clock(v.created_at)} UTC`, v.current || r.status === 'deleting' ? null : el('div', { class: 'acts' },
          button('Roll back', back(r, v.revision), { kind: 'quiet', key: 'back', label: `Roll back to ${v.revision}` }))));
  }

  async function load() {
    let found;
    try {
      found = await get(path(at));
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      if (sign) return go('#/managed'); // it was deleted while it was shown
      set(nothing, empty('There is no such resource', problem.message));
      return false;
    }
    if (JSON.stringify(found) !== sign) draw(found);
    sign = JSON.stringify(found);
    if (known !== `${found.id}/${found.revision}/${found.status === 'deleting'}`) {
      const { revisions: all } = await get(`${path(at)}/revisions`);
      history(found, all.sort((a, b) => b.revision - a.revision));
      known = `${found.id}/${found.revision}/${found.status === 'deleting'}`;
    }
    keyed(conditions.body, found.conditions, (c) => c.type, (c) => conditions.row(c.type,
      mark({ True: 'active', False: 'failed' }[c.status] || 'unknown', c.status), c.reason, c.message,
      age(c.last_transition_at)));
    keyed(drift.body, found.drift, (d) => `${d.member}/${d.field}`, (d) => drift.row(d.field, text(d.declared),
      text(d.actual)));
    keyed(members.body, found.members, (m) => m.id, (m) => members.row(m.object_id || '–', mark(m.status), m.revision,
      m.node || '–', m.reason ? el('span', { class: 'error' }, m.reason) : null));
    [found.conditions, found.drift, found.members, [found]].forEach((items, n) => {
      parts[n].title.hidden = parts[n].list.node.hidden = !items.length;
    });
    return moves(found) || found.status === 'deleting';
  }
  return { node, load };
}
