// The form for an order. It is checked while it is filled in, and can be sent twice without making anything twice.
import { el, set, heading, uid, bar, button, say } from './dom.js';
import { memory, later } from './lists.js';
import { get, call, newId } from './api.js';
import { handOver } from './orders.js';

const store = 'cloudfn-order'; // what survives a reload: never user_data, which may hold secrets
const kinds = 'flavors,images,networks,keypairs,security_groups,zones,quota';
const durations = [['', 'None'], ['PT1H', 'An hour'], ['PT8H', '8 hours'], ['P1D', 'A day'], ['P7D', 'A week']];
const NEW = '\n'; // no key pair has such a name
const needed = 'This is needed.';

const kept = () => JSON.parse(sessionStorage.getItem(store) || 'null');

export function view({ go, refresh }) {
  const order = kept() || { id: newId(), sent: false, values: {} };
  const f = {};
  const field = (name, label, input, note) => {
    const id = uid();
    const group = input.matches('fieldset, div');
    input.id = id;
    input.setAttribute('aria-describedby', `${id}-h ${id}-e`);
    const words = [label, note ? el('span', { class: 'soft', id: `${id}-h` }, ` ${note}`) : null];
    if (group) input.prepend(el('legend', {}, words));
    f[name] = { input, said: el('p', { class: 'error', id: `${id}-e` }) };
    return el('div', { class: `field ${name}` }, group ? null : el('label', { for: id }, words), input, f[name].said);
  };
  const text = (attrs) => el('input', { autocomplete: 'off', spellcheck: 'false', ...attrs });
  const wait = (say) => el('select', {}, el('option', { value: '' }, say));
  const many = () => el('fieldset', { class: 'many' });
  const report = el('div', { class: 'report', role: 'status' });
  const send = el('button', { class: 'primary', type: 'submit' }, 'Launch');
  const form = el('form', { class: 'card form', novalidate: true, onsubmit: submit, oninput: edited, onchange: edited },
    el('div', { class: 'pair' }, field('name', 'Name', text({ maxlength: 251, required: true, placeholder: 'web' })),
      field('count', 'How many', el('input', { type: 'number', min: 1, max: 100, value: 1, inputmode: 'numeric' }))),
    el('div', { class: 'pair' }, field('flavor', 'Flavor', wait('Loading…')),
      field('image', 'Image', wait('Loading…'))),
    field('networks', 'Networks', many(), '(none: the only one there is)'),
    el('div', { class: 'pair' }, field('key_name', 'SSH key', wait('None')),
      field('availability_zone', 'Zone', wait('Any'))),
    el('details', {}, el('summary', {}, 'Disks and addresses'),
      el('div', { class: 'pair' },
        field('boot_volume', 'Boot volume in GB', el('input', { type: 'number', min: 1, inputmode: 'numeric' }),
          '(none: an ordinary disk)'),
        field('volumes', 'Data volumes in GB', text({ placeholder: '10 20' }),
          '(they stay when the server is deleted)')),
      field('floating_ip', 'Floating IP', wait('None'))),
    el('details', {}, el('summary', {}, 'More'), field('security_groups', 'Security groups', many(), '(none: default)'),
      field('user_data', 'User data',
        el('textarea', { rows: 5, class: 'mono', spellcheck: 'false', maxlength: 49149, placeholder: '#cloud-config' }),
        '(for cloud-init; stays in this tab until it is sent)'),
      el('div', { class: 'pair' }, field('tags', 'Tags', text({ placeholder: 'web, blue' })),
        field('metadata', 'Metadata', text({ placeholder: 'role=db, stage=test' }))),
      field('lease', 'Lease', el('select', {}, durations.map(([value, words]) => el('option', { value }, words))),
        '(at its end the servers are shelved: no data is lost)'),
      field('on_failure', 'If one server cannot be had',
        el('select', {}, el('option', { value: 'keep' }, 'keep the others'),
        el('option', { value: 'rollback' }, 'delete all: all or nothing')))),
    report, el('div', { class: 'row end' }, button('Start over', startOver, { kind: 'quiet' }), send));
  const takes = el('div', { class: 'gauges' });
  const node = el('div', {}, heading('Launch'),
    el('div', { class: 'split' }, form, el('section', { class: 'card', 'aria-label': 'Quota' },
    el('h2', {}, 'Quota with this order'), takes)));
  let all = null, checks = 0, busy = false;

  const value = (name) => f[name].input.value.trim();
  const picked = (name) => [...f[name].input.querySelectorAll('input:checked')].map((i) => i.value);

  function body() {
    const b = { name: value('name'), flavor: value('flavor'), image: value('image') };
    const count = value('count');
    if (count !== '1') b.count = /^\d+$/.test(count) ? Number(count) : 0;
    for (const name of ['networks', 'security_groups']) if (picked(name).length) b[name] = picked(name);
    if (f.key_name.input.value === NEW) b.generate_key = true;
    else if (value('key_name')) b.key_name = f.key_name.input.value;
    if (value('availability_zone')) b.availability_zone = value('availability_zone');
    if (f.user_data.input.value) b.user_data = f.user_data.input.value;
    if (value('on_failure') === 'rollback') b.on_failure = 'rollback';
    return Object.assign(b, parts());
  }

  const words = (name) => value(name).split(/[\s,]+/).filter(Boolean);
  const size = (text) => (/^\d+$/.test(text) ? Number(text) : 0);

  /** parts are the fields of the order for what servers have beside their disk and their name. */
  function parts() {
    const b = {};
    if (value('boot_volume')) b.boot_volume = { size_gb: size(value('boot_volume')) };
    if (value('volumes')) b.volumes = words('volumes').map((text) => ({ size_gb: size(text) }));
    const address = f.floating_ip.input.value;
    if (address) b.floating_ip = address === NEW || address;
    if (value('tags')) b.tags = words('tags');
    if (value('metadata')) b.metadata = Object.fromEntries(value('metadata').split(',').map((pair) => {
      const [key, ...rest] = pair.split('=');
      return [key.trim(), rest.join('=').trim()];
    }));
    if (value('lease')) b.lease = { duration: value('lease') };
    return b;
  }

  function keep() {
    const values = Object.fromEntries(Object.keys(f).filter((n) => n !== 'user_data').map((n) =>
      [n, f[n].input.matches('fieldset') ? picked(n) : f[n].input.value]));
    Object.assign(order, { values, withData: Boolean(f.user_data.input.value) });
    sessionStorage.setItem(store, JSON.stringify(order));
  }

  function restore() {
    for (const [name, v] of Object.entries(order.values)) {
      if (!f[name]) continue;
      if (Array.isArray(v)) {
        f[name].input.querySelectorAll('input').forEach((i) => { i.checked = v.includes(i.value); });
      } else if (f[name].input.tagName !== 'SELECT' || [...f[name].input.options].some((o) => o.value === v)) {
        f[name].input.value = v;
      }
    }
  }

  function startOver() {
    sessionStorage.removeItem(store);
    go('#/launch');
  }

  function edited(event) {
    const at = Object.values(f).find(({ input }) => input.contains(event.target));
    if (at?.input.value && at.said.textContent === needed) {
      set(at.said);
      at.input.removeAttribute('aria-invalid');
    }
    if (order.sent) { // another body is another order
      order.id = newId();
      order.sent = false;
    }
    keep();
    showQuota();
    checks++;
    check();
  }

  /** showQuota shows the quota that is left after the order. */
  function showQuota() {
    if (!all?.quota) return;
    const { instances, vcpus, ram_mb: ram } = all.quota;
    const n = Number(value('count')) || 0, size = all.flavors?.find((x) => [x.id, x.name].includes(value('flavor'))) ||
      { vcpus: 0, ram_mb: 0 };
    set(takes, bar('Servers', instances.used + n, instances.max), bar('vCPUs', vcpus.used + n * size.vcpus, vcpus.max),
      bar('Memory', ram.used + n * size.ram_mb, ram.max, ' MiB'));
  }

  const check = later(async () => {
    const mine = checks;
    // Beside a sent order it would replace what is said of that.
    if (!node.isConnected || busy || order.sent || !value('name') || !value('flavor') || !value('image')) return;
    try {
      const found = await call('POST', '/v1/launch?dry_run=true', body());
      if (mine === checks && !busy) show(found);
    } catch (problem) {
      if (mine === checks && !busy && problem.status !== 401) blame(problem);
    }
  }, 500);

  function clear() {
    set(report);
    for (const { input, said } of Object.values(f)) {
      input.removeAttribute('aria-invalid');
      if (said.firstChild) set(said);
    }
  }

  /** place puts what is wrong beside the field that it is about, else below the form. */
  function place(field, detail, allowed) {
    const name = field.replace(/^instances\[\d+\]\./, '').replace(/[[.].*$/, '');
    const at = f[{ generate_key: 'key_name', min: 'flavor' }[name] || name];
    const words = detail + (allowed?.length && allowed.length < 6 ? ` (${allowed.join(', ')})` : '');
    if (!at) return report.append(el('p', { class: 'error' }, `${field}: ${words}`));
    if (!at.input.matches('fieldset')) at.input.setAttribute('aria-invalid', 'true');
    at.input.closest('details')?.setAttribute('open', '');
    return at.said.append(at.said.firstChild ? `; ${words}` : words);
  }

  function show(found) {
    clear();
    found.problems.forEach((p) => place(p.field, p.detail, p.allowed));
    if (found.ok) report.append(el('p', { class: 'fine' },
      `Ready: ${value('count') === '1' ? 'one server' : `${value('count')} servers`} can be launched.`));
    else report.append(el('p', { class: 'error' }, found.problems.length === 1 ? 'One thing is in the way.'
      : `${found.problems.length} things are in the way.`));
    if (found.unchecked.length) report.append(el('p', { class: 'soft' },
      `Could not be checked: ${found.unchecked.map((u) => u.detail).join('; ')}.`));
  }

  function blame(problem) {
    clear();
    problem.errors.forEach((e) => place(e.field, e.detail, e.allowed));
    if (!problem.errors.length) report.append(el('p', { class: 'error' }, problem.message));
  }

  function missing() {
    const names = ['name', 'flavor', 'image'].filter((n) => !value(n));
    if (names.length) clear();
    names.forEach((n) => place(n, needed));
    if (names.length) f[names[0]].input.focus();
    return names.length > 0;
  }

  async function submit(event) {
    event.preventDefault();
    if (busy || missing()) return;
    busy = true;
    checks++;
    order.sent = true;
    keep();
    send.setAttribute('aria-disabled', 'true');
    set(send, 'Ordering…');
    const sent = { id: order.id, ...body() };
    try {
      const answer = await call('POST', '/v1/launch', sent);
      sessionStorage.removeItem(store);
      handOver(answer, sent.generate_key);
      go(`#/orders/${answer.id}`);
    } catch (problem) {
      blame(problem);
      unanswered(problem, sent.id);
      form.querySelector('[aria-invalid]')?.focus();
    } finally {
      busy = false;
      send.removeAttribute('aria-disabled');
      set(send, 'Launch');
    }
  }

  // An order that was refused is settled: what is sent next is another one. One that no one answered is the same still.
  function unanswered(problem, sent) {
    if (problem.status >= 400 && problem.status < 500 && problem.status !== 401 && problem.status !== 429) {
      order.id = newId();
      order.sent = false;
      keep();
    } else if (problem.status !== 401) {
      report.append(el('p', { class: 'soft' }, order.id === sent
        ? 'No one has answered. Launch again: it stays one order.'
        : 'There was no answer. The form was changed meanwhile, and would launch another order: '
          + 'look at Orders first.'));
    }
  }

  async function load() {
    if (order.sent && !busy && !all) await find();
    if (all) return false;
    const [found, free] = await Promise.all([get(`/v1/resources?kinds=${kinds}`),
      call('GET', '/v1/floating-ips?attached=false&limit=100', undefined, true).catch(() => ({ floating_ips: [] }))]);
    all = found;
    fill(free.floating_ips);
    restore();
    showQuota();
    check();
    return false;
  }

  // After a reload in the middle: was the order taken?
  async function find() {
    try {
      const answer = await get(`/v1/launch/${order.id}`);
      sessionStorage.removeItem(store);
      handOver(answer, order.values.key_name === NEW);
      go(`#/orders/${answer.id}`);
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      const lost = order.withData ? ' Its user data was not kept: enter it again.' : '';
      say(`The order did not arrive. It can be sent again.${lost}`);
    }
  }

  const options = (name, first, list) => set(f[name].input,
    [...(first ? [['', first]] : []), ...list].map(([v, t]) => el('option', { value: v }, t)));
  const boxes = (name, list) => f[name].input.append(...list.map(([v, t, beside]) => el('label', {},
    el('input', { type: 'checkbox', value: v }), el('span', {}, t, ' ', el('span', { class: 'soft' }, beside)))));

  // By name where it is unique, so that what is sent can be read.
  const refs = (list) => list.map((x) => ({ ...x, ref: x.name && list.filter((y) => y.name === x.name).length === 1
    ? x.name : x.id }));

  function fill(addresses) {
    const images = refs((all.images || []).filter((i) => i.status === 'active'));
    options('flavor', 'Choose a size',
      refs(all.flavors || []).map((x) => [x.ref, `${x.name}: ${x.vcpus} vCPU, ${memory(x.ram_mb)}, ${x.disk_gb} GiB`]));
    options('image', images.length === 1 ? '' : 'Choose an image', images.map((x) => [x.ref, x.name || x.id]));
    options('key_name', 'None', [[NEW, 'Make a new one'], ...(all.keypairs || []).map((k) => [k.name, k.name])]);
    options('availability_zone', 'Any', (all.zones || []).filter((z) => z.available).map((z) => [z.name, z.name]));
    const nets = refs((all.networks || []).filter((n) => !n.external));
    boxes('networks', nets.map((n) => [n.ref, n.name || n.id, n.subnets.map((s) => s.cidr).join(', ')]));
    if (nets.length > 1) f.networks.input.querySelector('legend .soft').textContent = ' (one at least)';
    const external = refs((all.networks || []).filter((n) => n.external));
    options('floating_ip', 'None', [
      ...external.map((n) => (external.length > 1 ? [n.ref, `A new one of ${n.name || n.id}`] : [NEW, 'A new one'])),
      ...addresses.map((a) => [a.address, `${a.address}, which is free`])]);
    boxes('security_groups', refs(all.security_groups || []).map((g) => [g.ref, g.name || g.id, g.description]));
    const q = all.quota?.instances;
    if (q && q.max >= 0) set(f.count.said.parentElement.querySelector('label'), 'How many',
      el('span', { class: 'soft' }, ` (${Math.min(100, Math.max(0, q.max - q.used))} at most)`));
    for (const [kind, problem] of Object.entries(all.errors || {})) report.append(el('p', { class: 'error' },
      `${kind}: ${problem.detail}`));
  }

  return { node, load, refresh };
}
