// The volumes of a lease: in its form, and in words.
import { el, button, say, set } from './dom.js';
import { call, get, versionOf } from './api.js';
import { ask, labelled } from './dialogs.js';

const ends = { keep: ['Keep it', 'kept'], snapshot: ['Make a snapshot, and keep it', 'kept, with a snapshot'],
  delete: ['Delete it', 'deleted'] };

/** volumeText says which volume a reservation is of, and what becomes of it. */
export const volumeText = (r) => el('span', {}, el('a', { href: '#/volumes' }, 'Volume'), ' ',
  r.volume_id ? el('span', { class: 'mono' }, r.volume_id) : `of ${r.size_gb} GB`, ', at the end ', ends[r.on_end][1],
  r.snapshot_id && [' ', el('span', { class: 'mono' }, r.snapshot_id)]);

/** volumeEnd is the button that changes what becomes of the volume of a reservation. */
export function volumeEnd(lease, r, done) {
  const input = el('select', {}, Object.entries(ends).map(([value, [text]]) => el('option', { value }, text)));
  input.value = r.on_end;
  return button('Other end', () => ask('What is to happen to the volume?', '', 'Change', async () => {
    await call('PATCH', `/v1/leases/${lease.id}`, { reservations: [{ id: r.id, on_end: input.value }] }, false,
      versionOf(lease));
    say('The volume ends differently.');
    done();
  }, labelled('At the end of the lease', input)),
  { key: `end-${r.id}`, kind: 'quiet', label: 'Other end of the volume' });
}

/** volumeEnds says what the end of a lease does to its volumes; '' when it has none. */
export function volumeEnds(lease) {
  const all = lease.reservations.filter((r) => r.type === 'volume').map((r) => ends[r.on_end][1]);
  return all.length ? `Its volumes are detached: ${[...new Set(all)].join('; ')}.` : '';
}

/** volumeFields are rows of the form for a lease. instances gives those that are chosen: [[id, name]...]. */
export function volumeFields(instances) {
  const rows = [], list = el('div', { class: 'stack' });
  const options = (all) => all.map(([value, text]) => el('option', { value }, text));
  const more = button('Add a volume', add);

  async function add() {
    const { volumes } = await get('/v1/volumes?status=available&limit=1000').catch(() => ({ volumes: [] }));
    const row = { volume_id: el('select', {}, options([['', 'A new one'],
      ...volumes.map((v) => [v.id, `${v.name || v.id}: ${v.size_gb} GB`])])),
    size_gb: el('input', { type: 'number', min: 1, inputmode: 'numeric', value: 10 }), instance_id: el('select'),
    on_end: el('select', {}, options(Object.entries(ends).map(([value, [text]]) => [value, text]))) };
    const size = labelled('Size in GB', row.size_gb);
    row.volume_id.addEventListener('change', () => { size.hidden = row.volume_id.value !== ''; });
    row.instance = labelled('Instance', row.instance_id);
    row.said = el('p', { class: 'error' });
    row.node = el('fieldset', { class: 'pick' }, el('legend', { class: 'visually-hidden' }, 'Volume'),
      el('div', { class: 'pair' }, labelled('Volume', row.volume_id), size, row.instance,
        labelled('At the end of the lease', row.on_end)), row.said,
      el('div', { class: 'row end' }, button('Remove', () => {
        rows.splice(rows.indexOf(row), 1);
        row.node.remove();
        more.focus();
      }, { kind: 'quiet', label: 'Remove the volume' })));
    rows.push(row);
    list.append(row.node);
    update();
    row.volume_id.focus();
  }

  /** update offers the instances that are chosen now. */
  function update() {
    const all = instances();
    for (const { instance_id: select, instance } of rows) {
      const was = select.value;
      set(select, options(all));
      if (all.some(([id]) => id === was)) select.value = was;
      instance.hidden = all.length < 2;
    }
  }

  const body = () => rows.map((row) => ({ type: 'volume', on_end: row.on_end.value,
    ...(row.instance_id.value && { instance_id: row.instance_id.value }),
    ...(row.volume_id.value ? { volume_id: row.volume_id.value } : { size_gb: Number(row.size_gb.value) }) }));

  /** clear removes what blame has shown. */
  function clear() {
    for (const row of rows) {
      set(row.said);
      row.node.querySelectorAll('[aria-invalid]').forEach((input) => input.removeAttribute('aria-invalid'));
    }
  }

  /** blame shows what is wrong with a field of the nth volume, and gives its input. */
  function blame(n, field, detail) {
    const input = rows[n]?.[field]?.matches ? rows[n][field] : rows[n]?.volume_id;
    if (!input) return null;
    rows[n].said.append(rows[n].said.firstChild ? `; ${detail}` : detail);
    input.setAttribute('aria-invalid', 'true');
    return input;
  }

  const node = el('div', { class: 'stack' }, list, el('div', { class: 'row' }, more));
  return { node, update, body, clear, blame };
}
