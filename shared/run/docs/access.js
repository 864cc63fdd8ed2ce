// Adds the caller's credentials to the page's requests: the token that was typed in, or else the session of the
// console. The token stays in memory. The session's cookie is for the console's own paths, so its requests go through
// the console's proxy.

let token = '', session = null, status = 0;
let takesToken = () => false;

/** describe sets which requests take a token: see tokenPaths. */
export const describe = (reports) => { takesToken = reports; };

/** readSession reads who is signed in at the console. It does not keep the session alive. */
export async function readSession() {
  const answer = await fetch('/console/session', {
    headers: { 'X-Cloudfn-Console': 'refresh' }, credentials: 'same-origin', cache: 'no-store',
  }).catch(() => null);
  status = answer?.status || 0;
  session = answer?.ok ? await answer.json() : null;
}

/** useToken sets the token for requests; empty = use the session. */
export const useToken = (text) => { token = text.trim(); };

/** sentence explains how requests are sent. A link to the console may go before its text. */
export function sentence() {
  if (token) return { text: 'Requests are sent with this token.' };
  if (session) return { text: `Requests are sent as ${session.user.name} in project ${session.project.name}.` };
  if (status === 401) return { link: 'Sign in at the console', text: ' to send requests, or enter a token.' };
  if (status === 404) return { text: 'The console is not served here: enter a token to send requests.' };
  return { text: 'The session of the console cannot be read: enter a token to send requests.' };
}

const hex = (byte) => byte.toString(16).padStart(2, '0');
const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), hex).join('');

/** send adds what identifies the caller to a request of Swagger UI, just before it is sent. */
export function send(request) {
  const url = new URL(request.url, location.href);
  if (url.origin !== location.origin || !takesToken(request.method || 'GET', url.pathname)) return request;
  if (token) request.headers['X-Auth-Token'] = token;
  else if (session) {
    request.url = `/console/api${url.pathname}${url.search}`;
    // Other sites cannot send these headers: the console rejects requests without the first one, and those of a page
    // whose user has changed.
    request.headers['X-Cloudfn-Console'] = '1';
    request.headers['X-Cloudfn-User'] = `${session.user.id}/${session.project.id}`;
  }
  // a browser repeats what a lost connection took
  if (request.method === 'POST') request.headers['Idempotency-Key'] ||= newKey();
  return request;
}
