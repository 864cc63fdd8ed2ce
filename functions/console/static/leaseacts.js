// What people do with a lease: on its page, in the calendar, and on the pages of its servers.
import { el, button, say } from './dom.js';
import { age } from './lists.js';
import { call, versionOf } from './api.js';
import { confirm, ask, labelled } from './dialogs.js';
import { volumeEnds } from './leasevolumes.js';

/** ends says what happens to servers when their lease ends. */
export const ends = { shelve: 'its servers are shelved, and keep their disks', stop: 'its servers are stopped',
  snapshot_delete: 'an image of each server is made, then the server is deleted', delete: 'its servers are deleted' };

/** onEnds are what can be chosen for the end. */
export const onEnds = [['shelve', 'Shelve the servers'], ['stop', 'Stop the servers'],
  ['snapshot_delete', 'Make images, then delete'], ['delete', 'Delete the servers']];

/** left says how long it is until a lease begins or ends. It counts down. */
export function left(lease) {
  if (lease.status === 'pending') return el('span', {}, 'begins in ', age(lease.start));
  return ['starting', 'active'].includes(lease.status) ? el('span', {}, age(lease.end), ' left') : null;
}

/** isSoon tells that a lease begins or ends within a minute. */
export const isSoon = (lease) => ['pending', 'starting', 'active', 'ending', 'error'].includes(lease.status) &&
  new Date(lease.status === 'pending' ? lease.start : lease.end) - Date.now() < 60_000;

/** isEnding tells that a lease ends, or that its end has failed. */
export const isEnding = (lease) => lease.status === 'ending' || lease.status === 'error' &&
  lease.events?.some((e) => e.type === 'end' && e.status === 'failed');

/** release is the button for admins that ends a lease and leaves its servers; null when it has ended. */
export function release(lease, done) {
  if (['ended', 'cancelled'].includes(lease.status)) return null;
  const act = async () => {
    const answer = await call('POST', `/v1/leases/${lease.id}/release`);
    say(`${lease.name} is ${answer.status}.`);
    done();
  };
  return button('Release', () => confirm(`Release ${lease.name}?`, 'It ends now. Its servers stay where they are, ' +
    'and a host with servers is not reservable until they are removed.', 'Release the lease', act),
  { key: 'release', kind: 'danger', label: `Release ${lease.name}` });
}

/** acts are the buttons of what a lease's status allows. done is called after each. */
export function acts(lease, done, quiet) {
  const path = `/v1/leases/${lease.id}`, isPending = lease.status === 'pending';
  const has = (type) => lease.reservations.some((r) => r.type === type);
  const runs = isPending || ['starting', 'active'].includes(lease.status);
  const extend = () => {
    const until = el('input', { type: 'datetime-local', value: lease.end.slice(0, 19),
      step: 1, required: true });
    ask(`When is ${lease.name} to end?`, '', 'Change', async () => {
      const end = until.value.length === 16 ? `${until.value}:00Z` : `${until.value}Z`; // browsers omit seconds of 00
      await call('PATCH', path, { end }, false, versionOf(lease));
      say(`${lease.name} has another end.`);
      done();
    }, labelled('New end, in UTC', until));
  };
  const whenCancelled = [has('host') && 'Its hosts are free for others.',
    has('instance') && 'Its instances are as before: those that ran start again.'];
  const whenEnded = [`At its end ${ends[lease.on_end]}.`, volumeEnds(lease), has('host') && 'Its hosts are returned.'];
  const end = () => confirm(isPending ? `Cancel ${lease.name}?` : `End ${lease.name} now?`,
    (isPending ? whenCancelled : whenEnded).filter(Boolean).join(' '), isPending ? 'Cancel the lease' : 'End the lease',
  async () => {
    const answer = await call('DELETE', path);
    say(`${lease.name} is ${answer.status}.`);
    done();
  });
  const other = () => {
    const input = el('select', {}, onEnds
      .filter(([value]) => value !== 'stop' || !has('host')).map(([value, text]) => el('option', { value }, text)));
    input.value = lease.on_end;
    ask(`How is ${lease.name} to end?`, '', 'Change', async () => {
      await call('PATCH', path, { on_end: input.value }, false, versionOf(lease));
      say(`${lease.name} ends differently.`);
      done();
    }, labelled('At the end', input));
  };
  const retry = async () => {
    try {
      await call('POST', `${path}/retry`);
      say(`${lease.name} is tried again.`);
    } catch (problem) {
      say(problem.message);
    }
    done();
  };
  const one = (verb, act, key, kind = '') => button(verb, act,
    { key, kind: quiet ? `quiet ${kind}` : kind, label: `${verb} ${lease.name}` });
  return [['ending', 'error'].includes(lease.status) ? one('Retry', retry, 'retry') : null,
    isEnding(lease) && !quiet ? one('Other end', other, 'on-end', 'danger') : null,
    runs ? one('New end', extend, 'extend') : null,
    runs || lease.status === 'error' ? one(isPending ? 'Cancel' : 'End now', end, 'end', 'danger') : null];
}
