// Calls to the API through the console's own origin. The token stays on the server: the browser has a cookie that
// no script can read.

import { filter, keep } from './address.js';

/** Problem is an answer that was no success (RFC 9457), or no answer at all (status 0). */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || '';
    this.errors = body.errors || [];
    this.requestId = body.request_id;
  }
}

/** events: "over" when the session has ended, "unreachable" and "back" when the API stops and begins to answer. */
export const events = new EventTarget();

let unreachable = false;
const turn = (now) => {
  if (unreachable !== now) events.dispatchEvent(new Event(now ? 'unreachable' : 'back'));
  unreachable = now;
};

/** isUnreachable tells that the last call had no answer. */
export const isUnreachable = () => unreachable;

let user = '';
/** actFor sets the user of the page. Requests fail once another tab has signed in as someone else. */
export function actFor(who) {
  bodies.clear();
  user = `${who.user.id}/${who.project.id}`;
}

let used = Date.now();
for (const event of ['pointerdown', 'keydown', 'wheel']) {
  addEventListener(event, () => { used = Date.now(); }, { capture: true, passive: true });
}
/** sender reports whether someone uses the page. What it reads on its own does not keep the session alive. */
const sender = () => (Date.now() - used < 60_000 ? '1' : 'refresh');

const longest = 125_000; // ms: when every function and every gateway has given up

const versions = new WeakMap();
/** versionOf is the ETag of an answer, for a call that changes only what the page shows. */
export const versionOf = (value) => versions.get(value);

const bodies = new Map(); // by path, the latest last: {tag, text} of what was read, and is sent again when it changes

/** remember keeps the body of a read for the next one of the same path. */
function remember(url, tag, text) {
  bodies.delete(url);
  if (tag?.startsWith('W/')) bodies.set(url, { tag, text });
  if (bodies.size > 20) bodies.delete(bodies.keys().next().value);
}

async function send(url, method, body, aside, version) {
  const headers = { 'X-Cloudfn-Console': sender(), Accept: 'application/json' };
  if (method === 'POST') headers['Idempotency-Key'] = newId(); // a browser sends again what a lost connection took
  if (version) headers['If-Match'] = version;
  if (user) headers['X-Cloudfn-User'] = user;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const known = method === 'GET' && bodies.get(url);
  if (known) headers['If-None-Match'] = known.tag;
  let answer, value = {};
  try {
    answer = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: 'same-origin', cache: 'no-store', signal: AbortSignal.timeout(longest) });
    const text = answer.status === 304 ? known.text : await answer.text();
    if (text) value = JSON.parse(text);
    if (answer.ok && method === 'GET') remember(url, answer.headers.get('ETag'), text);
  } catch {
    if (!answer || answer.ok) { // an incomplete answer is an error; but a proxy's rejection need not be JSON
      if (!aside) turn(true);
      throw new Problem(0, { detail: 'cloudfn cannot be reached' });
    }
  }
  const none = [502, 503, 504].includes(answer.status);
  if (!aside && (!none || method === 'GET')) turn(none); // what could not be done says nothing about what can be read
  if (answer.ok || answer.status === 304) {
    if (answer.headers.has('ETag')) versions.set(value, answer.headers.get('ETag'));
    return value;
  }
  throw new Problem(answer.status, value);
}

let switching = 0; // how many requests for another project are under way: the old session ends before their answer

/** expired tells of a 401, unless the page has another user than the request by now, or is about to. */
const expired = (sender) => sender === user && !switching && events.dispatchEvent(new Event('over'));

/** call sends a request to the API: call('GET', '/v1/servers'). aside: the view can do without,
  and it tells of no outage. version: the call fails if what it changes has another one by now. */
export async function call(method, path, body, aside = false, version = '') {
  const by = user;
  try {
    return await send(`api${path}`, method, body, aside, version);
  } catch (problem) {
    if (problem.status === 401) expired(by);
    throw problem;
  }
}

export const get = (path) => call('GET', path);

/** download reads a file of any length, which is whole or a Problem. */
export async function download(path, type) {
  const headers = { 'X-Cloudfn-Console': sender(), Accept: type };
  const by = user;
  if (user) headers['X-Cloudfn-User'] = user;
  let answer;
  try {
    answer = await fetch(`api${path}`, { headers, credentials: 'same-origin', cache: 'no-store',
      signal: AbortSignal.timeout(longest) });
    if (answer.ok) return await answer.blob();
  } catch {
    throw new Problem(0, { detail: answer ? 'The export broke off before its end: choose a shorter time.'
      : 'cloudfn cannot be reached' });
  }
  if (answer.status === 401) expired(by);
  throw new Problem(answer.status, await answer.json().catch(() => ({})));
}

/** session is the signed-in user's: GET to see it, POST to sign in, DELETE to sign out. */
export const session = (method, body) => send('session', method, body);

/** projects lists those that the user may switch to. */
export const projects = () => send('session/projects', 'GET');

/** switchTo makes the session one of another project, and calls done with who is signed in then. */
export async function switchTo(project, done) {
  switching++;
  try {
    done(await send('session', 'PATCH', { project_id: project.id }));
  } finally {
    switching--;
  }
}

/** endSessions signs the user out in all browsers. */
export const endSessions = () => send('session?all=true', 'DELETE');

/** listing reads a list as far as it was requested: more() makes it longer by a page. How long it is, is the filter key
  of the address. */
export function listing(field, page = 50, key = 'rows') {
  const given = Number(filter(key));
  let want = Number.isInteger(given) && given > page ? Math.min(given, 1000) : page, next = null;
  return {
    async load(path) {
      const join = path.includes('?') ? '&' : '?';
      let answer = await get(`${path}${join}limit=${Math.min(want, 1000)}`);
      const items = answer[field];
      while (answer.next && items.length < want) {
        answer = await get(answer.next);
        items.push(...answer[field]);
      }
      next = answer.next;
      return items;
    },
    more: () => keep({ [key]: want += page }),
    reset: () => keep({ [key]: (want = page) && '' }),
    get rest() { return next !== null; },
  };
}

/** newId is a UUID, also without randomUUID, which browsers have only with https. */
export function newId() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const b = crypto.getRandomValues(new Uint8Array(16));
  b[6] = (b[6] & 15) | 64;
  b[8] = (b[8] & 63) | 128;
  const hex = [...b].map((x) => x.toString(16).padStart(2, '0')).join('');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
