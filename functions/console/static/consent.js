// Requests for connections that wait for this project: from which user, why, and for what. What they wrote is shown as
// text.
import { el, set, button, clock, say, uid } from './dom.js';
import { facts, keyed, age } from './lists.js';
import { call, listing } from './api.js';
import { dialog, confirm } from './dialogs.js';

const quotas = [['instances', 'Servers'], ['vcpus', 'vCPUs'], ['ram_mb', 'Memory, in MiB'],
  ['volumes', 'Volumes'], ['gigabytes', 'Of volumes, in GB'], ['floating_ips', 'Floating IPs']];

const limits = (r) => Object.entries(r.terms.limits).map(([name, values]) => `${name} ${values.join(', ')}`).join('; ');

const projectOf = (r) => r.requested_by.project_name || r.requested_by.project_id;
const who = (r) => `${r.requested_by.user_name || r.requested_by.user_id} of ${projectOf(r)}`;
const until = (r) => (r.terms.duration ? `${r.terms.duration} from when you grant it`
  : `${clock(r.terms.expires_at)} UTC`);

/** labelled is a field of a form with its label. */
function labelled(text, input) {
  input.id = uid();
  return el('div', { class: 'field' }, el('label', { for: input.id }, text), input);
}

/** grant asks how much of a request is granted, and grants that. */
function grant(r, done) {
  const grantee = r.for === 'project' ? `everyone authorized in ${projectOf(r)}` : who(r);
  dialog(`Grant ${r.name || 'a connection'} to ${grantee}?`, (close) => {
    const said = el('p', { class: 'error', role: 'alert' });
    const actions = r.terms.actions.map((name) => {
      const input = el('input', { type: 'checkbox', name });
      input.checked = true;
      return input;
    });
    const most = quotas.map(([name, label]) => {
      const requested = r.terms.quota[name] ?? null;
      return { name, label, requested, input: el('input',
        { type: 'number', min: 0, max: requested, value: requested, inputmode: 'numeric', placeholder: 'no limit' }) };
    });
    const end = el('input', { type: 'datetime-local' });
    const go = button('Grant', async () => {
      const body = { actions: actions.filter((a) => a.checked).map((a) => a.name), quota: {} };
      for (const { name, input } of most) if (input.value !== '') body.quota[name] = Number(input.value);
      if (end.value) body.expires_at = new Date(`${end.value}Z`).toISOString();
      go.disabled = true;
      try {
        await call('POST', `/v1/connections/requests/${r.id}/grant`, body);
        close();
        say(`${r.name || 'The connection'} is granted.`);
        done();
      } catch (problem) {
        set(said, problem.errors.length ? problem.errors.map((e) => `${e.field} ${e.detail}`).join('; ')
          : problem.message);
        go.disabled = false;
      }
    }, { kind: 'primary' });
    return [el('p', { class: 'soft' },
      'A trust is made with your login, and acts as you with the role member. Grant less by taking actions away, '
        + 'or with smaller numbers or an earlier end.'),
      el('fieldset', {}, el('legend', {}, 'It permits'),
        actions.map((input) => el('label', {}, input, ` ${input.name}`))),
      ...most.map(({ label, requested, input }) => labelled(requested === null ? `${label} at most (no limit requested)`
        : `${label} at most (${requested} requested)`, input)),
      labelled(`Until, in UTC (requested: ${until(r)})`, end), said,
        el('div', { class: 'row end' }, button('Cancel', close), go)];
  });
}

/** panel shows the requests that wait, and nothing without any. */
export function panel({ refresh }) {
  const pages = listing('requests', 50, 'asked');
  const list = el('div', { class: 'cards' });
  const title = el('h2', {}, 'Requests that wait for you');
  const more = button('Show more requests', () => { pages.more(); refresh(); });
  const node = el('section', { 'aria-label': 'Requests for connections' }, title, list, more);
  node.hidden = true;

  function card(r) {
    const decline = () => confirm(`Decline the request of ${who(r)}?`, 'Nothing is delegated. Its sender is notified.',
      'Decline', async () => {
      await call('POST', `/v1/connections/requests/${r.id}/decline`, {});
      say('The request is declined.');
      refresh();
    });
    return el('section', { class: 'card' }, el('div', { class: 'head' }, el('h3', {}, r.name || 'A connection'),
      el('div', { class: 'beside' },
      button('Grant', () => grant(r, refresh), { kind: 'primary', key: 'grant', label: `Grant ${r.name || r.id}` }),
      button('Decline', decline, { kind: 'quiet danger', key: 'decline', label: `Decline ${r.name || r.id}` }))),
    el('p', {}, r.why), el('ul', { class: 'chips', 'aria-label': 'It would permit' },
      r.terms.actions.map((a) => el('li', {}, a))),
    facts([['From', who(r)], ['User', el('span', { class: 'mono' }, r.requested_by.user_id)],
      ['Project', el('span', { class: 'mono' }, r.requested_by.project_id)],
      ['Who could act', r.for === 'project' ? 'everyone authorized in that project' : 'that user'],
      ...quotas.map(([name, label]) => [label, r.terms.quota[name] === undefined || r.terms.quota[name] === null
        ? 'no limit' : `${r.terms.quota[name]} at most`]),
      ['Only', limits(r)], ['Until', until(r)], ['Requested', [age(r.created_at), ' ago']],
        ['Waits until', `${clock(r.expires_at)} UTC`]]));
  }

  async function load() {
    const requests = await pages.load('/v1/connections/requests?received=true&status=pending');
    keyed(list, requests, (r) => r.id, card);
    node.hidden = !requests.length;
    more.hidden = !pages.rest;
  }
  return { node, load };
}
