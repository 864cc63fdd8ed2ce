// The form for a lease: of hosts, with the times at which they are free, or of instances and their volumes.
import { el, set, heading, uid, choice, button, say } from './dom.js';
import { get, call } from './api.js';
import { onEnds } from './leaseacts.js';
import { volumeFields } from './leasevolumes.js';
import { during } from './timeline.js';

const HOUR = 3600_000;
const local = (t) => new Date(t).toISOString().slice(0, 16); // what a datetime-local takes; all times are in UTC

export function view({ go }) {
  const f = {};
  let kind = 'host', instances = null;
  const field = (name, label, input, note) => {
    const id = uid();
    input.id = id;
    input.setAttribute('aria-describedby', `${id}-e`);
    const words = [label, note ? el('span', { class: 'soft' }, ` ${note}`) : null];
    f[name] = { input, said: el('p', { class: 'error', id: `${id}-e` }) };
    if (input.matches('fieldset')) input.prepend(el('legend', {}, words));
    return el('div', { class: 'field' }, input.matches('fieldset') ? null : el('label', { for: id }, words), input,
      f[name].said);
  };
  const number = (attrs) => el('input', { type: 'number', min: 1, inputmode: 'numeric', ...attrs });
  const text = (attrs) => el('input', { autocomplete: 'off', spellcheck: 'false', ...attrs });
  const select = (options) => el('select', {}, options.map(([v, t]) => el('option', { value: v }, t)));
  const report = el('div', { class: 'report', role: 'alert' });
  const free = el('ul', { class: 'free', 'aria-live': 'polite' });
  const send = el('button', { class: 'primary', type: 'submit' }, 'Reserve');
  const ofHosts = el('div', { class: 'stack' }, el('div', { class: 'pair' },
    field('min', 'Hosts, at least', number({ value: 1 })),
    field('max', 'Hosts, at most', number({ placeholder: 'the same number' }))),
  el('div', { class: 'pair' }, field('vcpus', 'vCPUs of each', number({ placeholder: 'any' }), '(at least)'),
    field('ram_mb', 'Memory of each, in MiB', number({ placeholder: 'any' }), '(at least)')),
  el('div', { class: 'row' }, button('When are they free?', find)), free);
  const volumes = volumeFields(() => chosen().map((id) => [id, instances.find((s) => s.instance.id === id).name]));
  const ofInstances = el('div', { class: 'stack' },
    field('instance_id', 'Instances', el('fieldset', { class: 'many', onchange: volumes.update })), volumes.node);
  ofInstances.hidden = true;
  const form = el('form', { class: 'card form', novalidate: true, onsubmit: submit },
    field('name', 'Name', text({ maxlength: 255, required: true, placeholder: 'workshop' })),
    choice('What is reserved', [['host', 'Hosts'], ['instance', 'Instances']], kind, (v) => {
      kind = v;
      ofHosts.hidden = v !== 'host';
      ofInstances.hidden = v !== 'instance';
      f.on_end.input.querySelector('[value=stop]').disabled = v === 'host';
    }),
    ofHosts, ofInstances,
    el('div', { class: 'pair' }, 
      field('start', 'Start, in UTC', el('input', { type: 'datetime-local' }), '(empty: now)'),
      field('end', 'End, in UTC', el('input', { type: 'datetime-local', required: true,
        value: local(Date.now() + 8 * HOUR) }))),
    el('div', { class: 'pair' }, field('on_end', 'At the end', select(onEnds)),
    field('before_end', 'Warning', select([['PT0S', 'None'], ['PT30M', '30 minutes before the end'],
      ['PT1H', 'An hour before the end'], ['P1D', 'A day before the end']]))),
    report, el('div', { class: 'row end' }, el('a', { class: 'button', href: '#/leases' }, 'Cancel'), send));
  f.on_end.input.querySelector('[value=stop]').disabled = true; // a stopped server would keep its host
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/leases' }, 'Leases')), heading('New lease'),
    form, el('p', { class: 'soft' }, 'A lease of hosts gives whole hosts to the project. A lease of instances promises '
      + 'time, not capacity: they are shelved until its start, and started then if Nova finds room. Volumes are '
      + 'attached once their instances run.'));

  const value = (name) => f[name].input.value.trim();
  const chosen = () => [...f.instance_id.input.querySelectorAll(':checked')].map((i) => i.value);
  const instant = (name) => `${value(name)}:00Z`;

  function body() {
    const b = { name: value('name'), on_end: value('on_end'), before_end: value('before_end') };
    if (value('start')) b.start = instant('start');
    if (value('end')) b.end = instant('end');
    if (kind === 'instance') {
      b.reservations = [...chosen().map((id) => ({ type: 'instance', instance_id: id })), ...volumes.body()];
      return b;
    }
    const host = { type: 'host' };
    for (const name of ['min', 'max', 'vcpus', 'ram_mb']) if (value(name)) host[name] = Number(value(name));
    b.reservations = [host];
    return b;
  }

  function clear() {
    set(report);
    volumes.clear();
    for (const { input, said } of Object.values(f)) {
      input.removeAttribute('aria-invalid');
      set(said);
    }
  }

  /** blame puts what is wrong beside the field that it is about, else below the form. */
  function blame(problem) {
    let first = null;
    const faults = problem.errors.length ? problem.errors : [{ field: '', detail: problem.message }];
    for (const { field: path, detail } of faults) {
      const [, nth, inner] = /^reservations\[(\d+)\]\.?(.*)/.exec(path) || [];
      const ofVolume = kind === 'instance' && nth ? volumes.blame(nth - chosen().length, inner, detail) : null;
      first ||= ofVolume;
      if (ofVolume) continue;
      const at = f[path.replace(/^reservations(\[\d+\])?\.?/, '')]
        || (path.startsWith('reservations') && kind === 'instance' ? f.instance_id : null);
      if (!at) {
        report.append(el('p', { class: 'error' }, path ? `${path}: ${detail}` : detail));
        continue;
      }
      if (!at.input.matches('fieldset')) at.input.setAttribute('aria-invalid', 'true');
      at.said.append(at.said.firstChild ? `; ${detail}` : detail);
      first ||= at.input;
    }
    first?.focus();
  }

  async function find() {
    clear();
    const start = value('start') ? new Date(instant('start')) : new Date();
    const minutes = Math.round((new Date(instant('end')) - start) / 60_000);
    if (!(minutes > 0)) return blame({ errors: [{ field: 'end', detail: 'must be after the start' }] });
    const query = new URLSearchParams({ hosts: value('min') || '1', duration: `PT${minutes}M`, limit: '5' });
    for (const name of ['vcpus', 'ram_mb']) if (value(name)) query.set(name, value(name));
    if (value('start')) query.set('from', instant('start'));
    try {
      const { slots } = await get(`/v1/leases/availability?${query}`);
      return set(free, slots.length ? slots.map((slot) => el('li', {},
        `${slot.hosts} free ${during(slot.start, slot.end)} `,
        button('Take its start', () => {
          const from = Math.max(new Date(slot.start), start);
          f.start.input.value = from > Date.now() ? local(from) : '';
          f.end.input.value = local(from + minutes * 60_000);
          say('The times are filled in.');
        }, { kind: 'quiet', label: `Take its start: ${during(slot.start, slot.end)}` })))
        : el('li', { class: 'soft' }, 'So many hosts are never free for so long within a year.'));
    } catch (problem) {
      return blame(problem);
    }
  }

  async function submit(event) {
    event.preventDefault();
    if (send.disabled) return;
    clear();
    send.disabled = true;
    try {
      const made = await call('POST', '/v1/leases', body());
      say(`${made.name} is reserved.`);
      go(`#/leases/${made.id}`);
    } catch (problem) {
      blame(problem);
    } finally {
      send.disabled = false;
    }
  }

  async function load() {
    if (instances) return false;
    const { servers } = await get('/v1/servers?tracked=true&limit=1000');
    instances = servers.filter((s) => s.instance && s.instance.state !== 'deleting');
    f.instance_id.input.append(...instances.map((s) => el('label', {},
      el('input', { type: 'checkbox', value: s.instance.id }),
      el('span', {}, s.name, ' ', el('span', { class: 'soft' }, s.instance.state)))));
    if (!instances.length) set(f.instance_id.said, 'The project has no instances: launch one first.');
    return false;
  }
  return { node, load };
}
