// What is delegated: to whom, how far, and until when.
import { el, set, button, heading, empty, clock, choice, bar, say } from './dom.js';
import { facts, keyed, age } from './lists.js';
import { call, listing } from './api.js';
import { confirm, ask, labelled } from './dialogs.js';
import { mark } from './state.js';
import { panel } from './consent.js';
import { filter, keep } from './address.js';

const trusts = { pending: 'Keystone may still have it; it is tried again until it is deleted',
  done: 'deleted in Keystone' };
const kinds = { trust: 'Trust', application_credential: 'Application credential' };

// The users and projects authorized to use it: ids, with the names by which they were given.
function users(c) {
  const names = Object.fromEntries((c.usable_by_names ||
    []).map((n) => [n.id, ` (${n.user || n.project}${n.domain ? ` of ${n.domain}` : ''})`]));
  return c.usable_by.map((id) => id + (names[id] || '')).join(', ');
}

// What may be ordered through it; nothing where that is not limited.
function limits(c) {
  const parts = Object.entries(c.limits || {}).map(([kind, allowed]) => `${kind} ${allowed.join(', ')}`);
  return parts.length ? el('span', { class: 'mono' }, parts.join('; ')) : null;
}

const filters = { '': '', ended: '?status=expired,lost,deleted', usable: '?usable=true', lease: '?of=lease',
  managed: '?of=managed' };

export function view({ refresh }) {
  const given = Object.keys(filters).find((name) => name === filter('which')) || '';
  let whose = filters[given];
  const pages = listing('connections');
  const list = el('div', { class: 'cards' });
  const waiting = panel({ refresh });
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const node = el('div', {}, heading('Connections',
    choice('Which', [['', 'Of this project'], ['ended', 'Ended'], ['usable', 'That I may use'], ['lease', 'Of leases'],
      ['managed', 'Of declared resources']], given, (v) => {
      whose = filters[v];
      keep({ which: v });
      refresh(true);
    })), waiting.node, list, nothing, more);

  const quota = (c) => {
    const row = (name, label, unit) => (c.quota[name] ?? -1) < 0 && !c.used[name] && name !== 'instances' ? null
      : bar(label, c.used[name], c.quota[name] ?? -1, unit);
    return el('div', { class: 'gauges' }, row('instances', 'Servers'), row('vcpus', 'vCPUs'),
      row('ram_mb', 'Memory', ' MiB'), row('volumes', 'Volumes'), row('gigabytes', 'Of volumes', ' GB'),
      row('floating_ips', 'Floating IPs'));
  };

  const until = (c) => {
    const ended = new Date(c.ends_at) < Date.now();
    return [clock(c.ends_at), ' UTC (', ended ? '' : 'in ', age(c.ends_at), ended ? ' ago)' : ')', c.idle_timeout
      ? `, or after ${c.idle_timeout} without use` : ''];
  };

  function card(c) {
    const name = c.name || `${kinds[c.kind]} ${c.id.slice(-8)}`;
    const revoke = () => confirm(`Revoke ${name}?`,
      'No one acts through it from now on. The servers stay as they are.', 'Revoke', async () => {
      await call('DELETE', `/v1/connections/${c.id}`);
      say(`${name} is revoked.`);
      refresh();
    });
    const check = async () => {
      try {
        const found = await call('POST', `/v1/connections/${c.id}/check`);
        say({ true: `${name} works. Its roles: ${found.roles.join(', ')}.`,
          false: `${name} does not work: it is ${found.status}.`,
          null: `There was no answer about ${name} in time. Check again.` }[found.works]);
      } catch (problem) {
        say(problem.message);
      }
      refresh();
    };
    const suspended = c.status === 'suspended';
    const change = async (method, path, body, done) => {
      await call(method, `/v1/connections/${c.id}${path}`, body);
      say(done);
      refresh();
    };
    const suspend = () => confirm(`Suspend ${name}?`,
      'Nothing is done through it until you resume it. What waits goes on then, and the servers stay as they are.',
      'Suspend',
      () => change('POST', '/suspend', undefined, `${name} is suspended.`));
    const resume = () => change('POST', '/resume', undefined,
      `${name} is resumed.`).catch((problem) => say(problem.message));
    const extend = () => {
      const until = el('input', { type: 'datetime-local', value: c.expires_at.slice(0, 16),
        required: true });
      ask(`Until when may ${name} be used?`, '', 'Change',
        () => change('PATCH', '', { expires_at: `${until.value}:00Z` }, `${name} has another end.`),
        labelled('New end, in UTC', until));
    };
    const open = !whose && (c.status === 'active' || suspended);
    return el('section', { class: 'card' },
      el('div', { class: 'head' }, el('h2', {}, name), el('div', { class: 'beside' }, mark(c.status),
      c.status === 'active' || suspended
        ? button('Check', check, { kind: 'quiet', key: 'check', label: `Check ${name}` }) : null,
      open ? button('New end', extend, { kind: 'quiet', key: 'extend', label: `New end of ${name}` }) : null,
      open && suspended ? button('Resume', resume, { kind: 'quiet', key: 'resume', label: `Resume ${name}` }) : null,
      open && !suspended ? button('Suspend', suspend, { kind: 'quiet', key: 'suspend', label: `Suspend ${name}` })
        : null,
      whose || c.status === 'deleted' ? null
        : button('Revoke', revoke, { kind: 'quiet danger', key: 'revoke', label: `Revoke ${name}` }))),
    el('ul', { class: 'chips', 'aria-label': 'It permits' }, c.actions.map((a) => el('li', {}, a))), quota(c),
    facts([['Until', until(c)], ['Suspended', c.suspended_at &&
      [age(c.suspended_at), ' ago: nothing is done through it']], ['Why it ended', c.reason],
      ['Its trust', trusts[c.revocation]], ['Kind', kinds[c.kind]],
      ['Acts as', c.acts_as && [
        c.acts_as.user_name || c.acts_as.user_id, ' in ', c.acts_as.project_name || c.acts_as.project_id,
        ` (${c.acts_as.roles.join(', ')})`]],
      ['Usable by', c.usable_by?.length ? el('span', { class: 'mono' }, users(c)) : whose === '?usable=true' ? null
        : 'the user who made it'],
      ['Only', limits(c)],
      ['Cloud', c.auth_url && `${c.auth_url} ${c.region || ''}`],
        ['Last used', c.last_used_at ? [age(c.last_used_at), ' ago'] : 'never'],
        ['Last checked', c.checked_at && [age(c.checked_at), ' ago']], ['Id', el('span', { class: 'mono' }, c.id)]]),
    (c.warnings || []).map((w) => el('p', { class: 'note' }, w)));
  }

  async function load() {
    const wanted = whose;
    const [connections] = await Promise.all([pages.load(`/v1/connections${wanted}`), waiting.load()]);
    if (wanted !== whose) return false;
    keyed(list, connections, (c) => c.id, card);
    more.hidden = !pages.rest;
    set(nothing, connections.length ? null : wanted === '?status=expired,lost,deleted'
      ? empty('Nothing has ended',
        'Connections that ended are listed here for 90 days, with the state of their trusts.')
      : wanted.startsWith('?of=') ? empty('Nothing is delegated',
        'What open leases and declared resources act through shows up here, and ends with them.')
      : wanted ? empty('No one has delegated anything to you',
        'What others let you do in their projects is listed here.')
      : empty('Nothing is delegated',
        'A connection lets a program act in this project: what you permit, up to a quota, until you end it. '
          + 'Create one with ',
          el('code', {}, 'cloudfn connections create'), '.'));
    return false;
  }
  return { node, load };
}
