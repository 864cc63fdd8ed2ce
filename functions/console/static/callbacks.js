// Webhook subscriptions and their deliveries.
import { el, set, button, heading, table, empty, clock, say, uid } from './dom.js';
import { swap, facts, keyed, age } from './lists.js';
import { get, call, listing } from './api.js';
import { dialog, confirm, secret } from './dialogs.js';
import { mark, inMotion } from './state.js';

const types = ['instance.state', 'order.state', 'callback.state', 'connection.state', 'connection.changed',
  'connection.revocation', 'connection.request', 'action.state', 'agent.ready', 'instance.unexpected_server',
  'lease.state', 'lease.changed', 'lease.before_end', 'node.state', 'node.drain', 'monitor.failed', 'managed.state',
  'managed.unexpected_object'].map((t) => `cloudfn.${t}.v1`);
const short = (type) => type.replace(/^cloudfn\.|\.v1$/g, '');
const what = (c) => (c.events.length ? c.events.map(short).join(', ') : 'everything');
const about = (c) => (c.instance_id ? 'one instance' : c.order_id ? 'one order' : c.connection_id ? 'one connection'
  : 'the project');

export function view({ id, refresh, go }) {
  return id ? one(id, refresh, go) : all(refresh, go);
}

function all(refresh, go) {
  const pages = listing('callbacks');
  const list = table('Callbacks of the project', [['URL', 'wrap'], ['Status'], ['Events', 'wrap'], ['About'],
    ['Age', 'n']]);
  list.node.hidden = true;
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const node = el('div', {}, heading('Callbacks', button('New callback', () => create(go), { kind: 'primary' })),
    list.node, nothing, more);

  async function load() {
    const callbacks = await pages.load('/v1/callbacks');
    list.node.hidden = !callbacks.length;
    keyed(list.body, callbacks, (c) => c.id,
      (c) => list.row(el('a', { href: `#/callbacks/${c.id}`, 'data-key': 'open' }, c.url), mark(c.status), what(c),
      about(c), age(c.created_at)));
    more.hidden = !pages.rest;
    set(nothing, callbacks.length ? null
      : empty('No callbacks yet', 'A callback gets a signed event for every change, so that no program has to poll.'));
    return callbacks.some((c) => c.status === 'pending' && Date.now() - new Date(c.updated_at) < 60000);
  }
  return { node, load };
}

function create(go) {
  dialog('New callback', (close) => {
    const id = uid(), said = el('p', { class: 'error', id: `${id}-e`, role: 'alert' });
    const url = el('input', { type: 'url', id, required: true, placeholder: 'https://receiver.example.com/cloud',
      autocomplete: 'off', 'aria-describedby': `${id}-e` });
    const events = el('fieldset', { class: 'many' },
      el('legend', {}, 'Events ', el('span', { class: 'soft' }, '(none: all)')),
      types.map((t) => el('label', {}, el('input', { type: 'checkbox', value: t }), el('span', {}, short(t)))));
    const send = el('button', { class: 'primary', type: 'submit' }, 'Create');
    const submit = async (event) => {
      event.preventDefault();
      if (send.disabled) return;
      send.disabled = true;
      try {
        const chosen = [...events.querySelectorAll(':checked')].map((i) => i.value);
        const made = await call('POST', '/v1/callbacks',
          { url: url.value.trim(), ...(chosen.length ? { events: chosen } : {}) });
        close();
        go(`#/callbacks/${made.id}`);
        secret('The secret of the callback',
          'Its events are signed with this. It is shown once: keep it where the receiver reads it.', made.secret);
      } catch (problem) {
        url.setAttribute('aria-invalid', 'true');
        set(said, problem.errors[0]?.detail || problem.message);
        url.focus();
      } finally {
        send.disabled = false;
      }
    };
    return el('form', { novalidate: true, onsubmit: submit },
      el('div', { class: 'field' }, el('label', { for: id }, 'URL'), url, said), events,
      el('div', { class: 'row end' }, button('Cancel', close), send));
  });
}

function one(id, refresh, go) {
  const pages = listing('deliveries');
  const head = el('div', {}, heading('Callback')), body = el('div'), nothing = el('div');
  const list = table('Deliveries, the newest first', [['Event'], ['Status'], ['Attempts', 'n'], ['Answer', 'n'],
    ['Last error', 'wrap'], ['About', 'mono aside'], ['Age', 'n'], ['Actions', 'acting']]);
  list.node.hidden = true;
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/callbacks' }, 'Callbacks')), head, body,
    el('h2', {}, 'Deliveries'), list.node, nothing, more);
  let sign = '';

  const act = (text, f) => async () => {
    try {
      await f();
      say(text);
    } catch (problem) {
      say(problem.message);
    }
    refresh();
  };
  const path = `/v1/callbacks/${id}`;
  const setStatus = (status) => act(status === 'suspended' ? 'It is suspended: events wait.'
    : 'Its receiver is asked for its consent.', () => call('PATCH', path, { status }));

  function draw(c) {
    const resumable = ['suspended', 'gone'].includes(c.status);
    swap(head, heading('Callback',
      c.status === 'gone' ? null : button('Send a test',
        act('A test event is on its way.', () => call('POST', `${path}/test`)), { key: 'test' }),
      button(resumable ? 'Resume' : 'Suspend', setStatus(resumable ? 'verified' : 'suspended'), { key: 'setStatus' }),
      button('Delete', () => confirm('Delete this callback?',
        `${c.url} gets no events any more. What waits for it is dropped.`, 'Delete', async () => {
        await call('DELETE', path);
        say('The callback is deleted.');
        go('#/callbacks');
      }), { kind: 'danger', key: 'delete' })));
    set(body, el('div', { class: 'card' },
      facts([['URL', el('span', { class: 'mono' }, c.url)], ['Status', mark(c.status)], ['Why', c.reason],
      ['Events', what(c)], ['About', about(c)],
      ['Rate', c.allowed_rate && `${c.allowed_rate} a minute at most`],
        ['Old secret', c.previous_secret_until && `signs until ${clock(c.previous_secret_until)} UTC`],
        ['Created', [age(c.created_at), ' ago']]])));
  }

  /** show shows what the receiver gets. */
  const show = (d) => get(`${path}/deliveries/${d.id}`).then(({ event }) => node.isConnected &&
    dialog(d.event_type, (close) => [
    el('pre', { class: 'mono', tabindex: 0, 'aria-label': 'The event' }, JSON.stringify(event, null, 2)),
    el('div', { class: 'row end' }, button('Close', close))])).catch((problem) => say(problem.message));

  const row = (d) => list.row(short(d.event_type), mark(d.status), d.attempts, d.answer || '–', d.error || '',
    d.subject.slice(-8), age(d.created_at),
    el('div', { class: 'acts' }, button('Event', () => show(d), { kind: 'quiet', key: 'event',
      label: `Event ${short(d.event_type)} ${d.event_id}` }), d.status === 'due' ? null
      : button('Redeliver', act('It is delivered again.', () => call('POST', `${path}/deliveries/${d.id}/redeliver`)),
        { kind: 'quiet', key: 'redeliver', label: `Redeliver ${short(d.event_type)} ${d.event_id}` })));

  async function load() {
    let callback, deliveries;
    try {
      [callback, deliveries] = await Promise.all([get(path), pages.load(`${path}/deliveries`)]);
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      set(nothing, empty('There is no such callback', problem.message));
      return false;
    }
    if (JSON.stringify(callback) !== sign) draw(callback);
    sign = JSON.stringify(callback);
    list.node.hidden = !deliveries.length;
    keyed(list.body, deliveries, (d) => d.id, row);
    more.hidden = !pages.rest;
    set(nothing, deliveries.length ? null
      : empty('No deliveries yet', 'What happens from now on is listed here, and so is a test.'));
    return callback.status === 'verified' && deliveries.some((d) => inMotion(d.status)) ||
      callback.status === 'pending' && Date.now() - new Date(callback.updated_at) < 60000;
  }
  return { node, load };
}
