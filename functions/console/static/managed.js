// Declared resources: their conditions, what differs from the declaration, and their revisions.
import { el, set, button, heading, table, empty, clock, choice, say } from './dom.js';
import { swap, facts, keyed, age } from './lists.js';
import { get, call, listing, versionOf } from './api.js';
import { confirm, ask } from './dialogs.js';
import { mark, inMotion } from './state.js';
import { filter, keep } from './address.js';

const path = (r) => `/v1/managed/${r.kind}/${r.name}`;
const link = (r) => `#/managed/${r.kind}.${r.name}`;
const kinds = [['', 'All'], ['VirtualMachineDeployment', 'Deployments'], ['VirtualMachine', 'Servers'],
  ['PodDeployment', 'Pod deployments'], ['Pod', 'Pods'], ['Volume', 'Volumes'], ['Image', 'Images'],
  ['Loadbalancer', 'Load balancers'], ['Secret', 'Secrets'], ['Configmap', 'Files']];
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

const isDeployment = (r) => r.kind.endsWith('Deployment');
const ready = (r) => (isDeployment(r)
  ? `${r.members.filter((m) => m.status === 'ready').length} of ${r.spec.count}` : '');

function all(refresh) {
  const pages = listing('managed');
  let kind = kinds.find(([value]) => value === filter('kind'))?.[0] || '';
  const list = table('Managed resources of the project', [['Name'], ['Kind'], ['Status'], ['Ready'], ['Revision', 'n'],
    ['Labels', 'wrap'], ['What is wrong', 'wrap'], ['Age', 'n']]);
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = list.node.hidden = true;
  const node = el('div', {}, heading('Managed', choice('Which', kinds, kind, (v) => {
    kind = v;
    keep({ kind });
    refresh(true);
  })),
    list.node, nothing, more);
  const row = (r) => list.row(el('a', { href: link(r), 'data-key': 'open' }, r.name), kindName(r), mark(r.status),
    ready(r) || '–', r.revision, labels(r) || '–',
    r.status_reason && r.status !== 'ready' ? el('span', { class: 'error' }, r.status_reason) : null,
    age(r.created_at));

  async function load() {
    const requested = kind;
    const found = await pages.load(`/v1/managed${requested ? `?kind=${requested}` : ''}`);
    if (requested !== kind) return false;
    list.node.hidden = !found.length;
    keyed(list.body, found, (r) => r.id, row);
    more.hidden = !pages.rest;
    set(nothing, found.length ? null : empty(requested ? 'Nothing is declared of this kind' : 'Nothing is declared',
      'Declare servers, volumes and more in files, and apply them with ', el('code', {}, 'cloudfn apply -f'), '.'));
    return found.some(moves);
  }
  return { node, load };
}

/** comparison shows two revisions side by side, or one beside what is real: the field, and its value in each. */
function comparison(at) {
  const from = el('select', { 'aria-label': 'Compare revision', onchange: () => draw() });
  const to = el('select', { 'aria-label': 'with', onchange: () => draw() });
  const shown = el('div', { class: 'stack', 'aria-live': 'polite' });
  const node = el('section', { class: 'stack', 'aria-label': 'Compare' }, el('h2', {}, 'Compare'),
    el('div', { class: 'beside' }, 'Revision', from, 'with', to), shown);
  let members = [], declared = 0;
  const nameOf = (r) => `${r.revision}${r.revision === declared ? ' (declared)' : ''}`;

  async function draw() {
    const query = new URLSearchParams({ from: from.value });
    if (to.value) query.set('to', to.value);
    let found;
    try {
      found = await get(`${path(at)}/diff?${query}`);
    } catch (problem) {
      return set(shown, el('p', { class: 'error' }, problem.message));
    }
    if (String(found.from) !== from.value || String(found.to ?? '') !== to.value) return undefined; // an older answer
    const all = found.differences;
    const title = `Differences from revision ${found.from} to ${found.to ? `revision ${found.to}` : 'what is real'}`;
    const list = table(title, [['Field', 'mono wrap'], [`Revision ${found.from}`, 'mono wrap'],
      [found.to ? `Revision ${found.to}` : 'Real', 'mono wrap'], ...(found.to ? [] : [['Member', 'mono wrap']])]);
    const value = (d, v) => (d.from === undefined && d.to === undefined ? 'secret' : text(v));
    keyed(list.body, all, (d) => `${d.member}/${d.path}`, (d) => list.row(d.path, value(d, d.from), value(d, d.to),
      ...(found.to ? [] : [members.find((m) => m.id === d.member)?.name || d.member || '–'])));
    return set(shown, all.length ? list.node : el('p', { class: 'soft' }, 'They do not differ.'));
  }

  return {
    node,
    /** offer gives the revisions that there are. It compares a new declared one: with what is real if others have
      changed that, else with the one before it. */
    offer(r, all) {
      members = r.members;
      if (declared === r.revision) return draw();
      declared = r.revision;
      const options = () => all.map((v) => el('option', { value: v.revision }, nameOf(v)));
      set(from, options());
      set(to, el('option', { value: '' }, 'what is real'), options());
      const before = !r.drift.length && all.find((v) => v.revision < declared);
      from.value = before ? before.revision : declared;
      to.value = before ? declared : '';
      return draw();
    },
    /** compare shows one revision beside the declared one. */
    compare(revision) {
      from.value = revision;
      to.value = declared;
      from.focus();
      return draw();
    },
  };
}

function one(at, refresh, go) {
  const head = el('div', {}, heading(at.name)), body = el('div', { class: 'stack' }), nothing = el('div');
  const conditions = table('Conditions', [['Condition'], ['Status'], ['Reason'], ['Message', 'wrap'], ['Since', 'n']]);
  const drift = table('What others have changed', [['Field'], ['Declared', 'wrap'], ['Actual', 'wrap']]);
  const members = table('Members', [['Object', 'mono wrap'], ['Status'], ['Revision', 'n'], ['Node'],
    ['What is wrong', 'wrap']]);
  const endpoints = table('Endpoints', [['Container'], ['Server'], ['Address', 'mono'], ['Port', 'n'], ['Protocol']]);
  const revisions = table('Revisions',
    [['Revision'], ['Repeats'], ['Made'], ['By', 'mono wrap'], ['Actions', 'acting']]);
  const compared = comparison(at);
  const parts = [['Conditions', conditions], ['Drift', drift], ['Members', members], ['Endpoints', endpoints],
    ['Revisions', revisions]]
    .map(([title, list]) => ({ list, title: el('h2', {}, title) }));
  parts.forEach((p) => { p.title.hidden = p.list.node.hidden = true; });
  const crumb = el('p', { class: 'crumb' }, el('a', { href: '#/managed' }, 'Managed'));
  const node = el('div', {}, crumb, head, body, nothing, ...parts.map((p) => [p.title, p.list.node]), compared.node);
  compared.node.hidden = true;
  let sign = '', known = '', all = [];

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

  /** scale changes the count of the version that the page shows, and nothing else. */
  const scale = (r) => () => {
    const count = el('input', { type: 'number', min: 0, max: 100, inputmode: 'numeric', value: r.spec.count,
      'aria-label': 'How many servers' });
    ask(`Scale ${r.name}`, 'How many servers it has from now on.', 'Scale', async () => {
      if (!/^\d+$/.test(count.value.trim())) throw new Error('The number of servers is missing: give 0 to 100.');
      const { labels: own, schedule, repair, max_revisions: kept, flavor, spec } = r;
      await call('PUT', path(r), { labels: own, schedule, repair, max_revisions: kept, flavor,
        spec: { ...spec, count: Number(count.value) } }, false, versionOf(r));
      say(`${r.name} is scaled to ${count.value}.`);
      refresh();
    }, count);
  };

  function draw(r) {
    const isLeaving = r.status === 'deleting';
    swap(head, heading(r.name, mark(r.status), !isLeaving && isDeployment(r)
      ? button('Scale', scale(r), { key: 'scale' }) : null,
    isLeaving ? null : button('Delete', remove(r), { kind: 'danger', key: 'delete' })));
    set(body, r.status_reason && r.status !== 'ready' ? el('p', { class: 'note bad' }, r.status_reason) : null,
      el('div', { class: 'card' }, facts([['Kind', kindName(r)], ['Ready', ready(r)],
        ['Revision', r.observed_revision === r.revision ? r.revision : `${r.revision}, real is ${r.observed_revision}`],
        ['Template', r.flavor], ['Labels', labels(r)], ['Repair', r.repair], ['Made', [age(r.created_at), ' ago']],
        ['Id', el('span', { class: 'mono' }, r.id)]])),
      el('details', {}, el('summary', {}, 'Declared'),
        el('pre', { class: 'card mono' }, JSON.stringify(r.spec, null, 2))));
  }

  function history(r, all) {
    keyed(revisions.body, all.map((v) => ({ ...v, current: v.revision === r.revision, over: r.status === 'deleting' })),
      (v) => v.revision, (v) => revisions.row(`${v.revision}${v.current ? ' (declared)' : ''}`, v.rolled_back || '–',
        `${clock(v.created_at)} UTC`, v.user_name || v.user_id,
        v.current || v.over ? null : el('div', { class: 'acts' },
          button('Compare', () => compared.compare(v.revision), { kind: 'quiet', key: 'compare',
            label: `Compare ${v.revision} with the declared revision` }),
          button('Roll back', back(r, v.revision),
            { kind: 'quiet', key: 'back', label: `Roll back to ${v.revision}` }))));
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
    const isChanged = JSON.stringify(found) !== sign;
    if (isChanged) draw(found);
    sign = JSON.stringify(found);
    if (known !== `${found.id}/${found.revision}/${found.status === 'deleting'}`) {
      ({ revisions: all } = await get(`${path(at)}/revisions`));
      all.sort((a, b) => b.revision - a.revision);
      history(found, all);
      known = `${found.id}/${found.revision}/${found.status === 'deleting'}`;
    }
    keyed(conditions.body, found.conditions, (c) => c.type, (c) => conditions.row(c.type,
      mark({ True: 'active', False: 'failed' }[c.status] || 'unknown', c.status), c.reason, c.message,
      age(c.last_transition_at)));
    keyed(drift.body, found.drift, (d) => `${d.member}/${d.field}`, (d) => drift.row(d.field, text(d.declared),
      text(d.actual)));
    keyed(members.body, found.members, (m) => m.id, (m) => members.row(
      el('span', { title: m.object_id || null }, m.name), mark(m.status), m.revision,
      m.node || '–', m.reason ? el('span', { class: 'error' }, m.reason) : null));
    const reached = found.endpoints || [];
    keyed(endpoints.body, reached, (e) => Object.values(e).join(), (e) => endpoints.row(e.container, e.server,
      e.address, e.port, e.protocol));
    [found.conditions, found.drift, found.members, reached, [found]].forEach((items, n) => {
      parts[n].title.hidden = parts[n].list.node.hidden = !items.length;
    });
    compared.node.hidden = false;
    if (isChanged) await compared.offer(found, all);
    return moves(found) || found.status === 'deleting';
  }
  return { node, load };
}
