// The frame around the views: who is signed in, which part is shown, and when it is read again.
import { el, byId, set, button, empty, heading, say, announce, showFor, span } from './dom.js';
import { actFor, call, events, isUnreachable, session, switchTo } from './api.js';
import { here } from './address.js';
import { signIn } from './signin.js';

const parts = [
  ['overview', 'Overview'], ['servers', 'Servers'], ['launch', 'Launch'], ['orders', 'Orders'],
  ['leases', 'Leases'], ['managed', 'Managed'], ['callbacks', 'Callbacks'], ['connections', 'Connections'],
  ['volumes', 'Volumes'], ['floating-ips', 'Floating IPs'],
  ['security-groups', 'Security groups'],
  ['requests', 'Requests'], ['nodes', 'Nodes'],
];

/** ordinary are roles that list no nodes on a usual cloud. */
const ordinary = ['member', 'reader', '_member_', 'creator', 'load-balancer_member'];

/** seesNodes reports whether the user may list nodes. It retries while there is no answer. */
async function seesNodes(who) {
  if (who.roles.every((role) => ordinary.includes(role))) return false;
  for (;;) {
    try {
      await call('GET', '/v1/nodes?limit=1', undefined, true);
      return true;
    } catch (problem) {
      if (![0, 429, 502, 503, 504].includes(problem.status) || who !== me) return false;
    }
    await new Promise((done) => { setTimeout(done, 15000); });
  }
}

const main = byId('main');
let me = null; // who is signed in
let shown = null; // the view on the page: {node, load}; of a list that was read, with its address
const lists = new Map(); // the list of each part that was shown, for the user's return
let held = false; // a filter is still being typed
let kept = null; // the view that waits behind the sign-in form after a session has ended
let round = 0; // which polling is the current one
let reading = 0, again = false; // the polling that waits for an answer, and whether it is to call once more
let timer, loaded;

/** route is what the address names, or nothing. An id becomes part of a path of the API, and must lead to no other. */
const route = () => {
  const { part, id } = here();
  return parts.some(([name]) => name === part) && /^([\w-]+(\.[\w-]+)*)?$/.test(id || '') ? { part, id } : {};
};

const titleOf = (part) => parts.find(([name]) => name === part)?.[1] || 'No such page';

function frame() {
  byId('nav').hidden = byId('who').hidden = !me;
  if (!me) return set(byId('who'));
  const { part } = route();
  const list = el('ul', {}, parts.map(([name, text]) => el('li', {},
    el('a', { href: `#/${name}`, 'aria-current': name === part ? 'page' : null }, text))));
  showFor(me.operator, list.lastChild); // nodes
  set(byId('nav'), list);
  const here = list.querySelector('[aria-current]');
  if (here) list.scrollLeft = here.offsetLeft - list.clientWidth / 2; // scrollIntoView would begin Tab here, too
  const name = [el('b', {}, me.project.name), el('span', { class: 'soft' }, me.user.name)];
  return set(byId('who'), el('button', { type: 'button', class: 'quiet name', title: 'Your session',
    onclick: () => import('./account.js').then(({ account }) => account(me, signOut, switched))
      .catch((e) => say(e.message)) }, name),
  button('Sign out', () => signOut(), { kind: 'quiet' }));
}

function title(text) {
  document.title = `${text} · cloudfn`;
}

/** open shows the part that the address names. first: at the start, where the focus is to stay where it is. */
async function open(first) {
  const mine = ++round;
  clearTimeout(timer);
  shown = null;
  if (!me) return showSignIn();
  frame();
  const { part, id } = route();
  title(titleOf(part));
  const old = lists.get(part), isKnown = !id && old?.address === location.hash && !old.isReading;
  const view = isKnown ? old : await make(part, { id, me, refresh, hold, go });
  if (mine !== round) return undefined;
  shown = view;
  loaded = isKnown ? view.loaded : null;
  held = false;
  if (!id && view.load && part !== 'launch') lists.set(part, view);
  set(main, view.node);
  if (isKnown) stale(true);
  else if (view.load && !view.node.querySelector('form')) view.node.append(bones);
  if (first !== true) {
    main.querySelector('h1').focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  return tick(mine);
}

/** make makes the view of a part. */
async function make(part, given) {
  if (!part) return { node: el('div', {}, heading('No such page'), empty('There is nothing at this address',
    el('a', { href: '#/overview' }, 'Go to the overview'), '.')) };
  try {
    return (await import(`./${part}.js`)).view(given);
  } catch (e) {
    if (e instanceof TypeError) return { node: el('div', {}, heading('This part did not load'),
      el('p', {}, 'Look at the connection and load the page again.')) };
    throw e;
  }
}

/** bones stand where a list will be, until it has been read. */
const bones = el('div', { class: 'bones', 'aria-hidden': 'true' }, el('p'), el('p'), el('p'));

/** stale keeps people from acting on what is being read again: it may be another list, or have changed. */
function stale(is) {
  if (is) main.setAttribute('aria-busy', 'true');
  shown?.node.querySelectorAll('.box, .cards, .tracks, .empty').forEach((n) => { n.inert = is; });
}

/** hold is for a filter that is still being typed. */
const hold = () => stale((held = true));

/** tick reads the view again: every 2 s while something moves, every 15 s otherwise, not at all while no one looks. */
async function tick(mine = round) {
  clearTimeout(timer);
  if (mine !== round || !shown || !me || document.hidden) return;
  if (reading === mine) { // one reading at a time, so that an older answer never takes the place of a newer one
    again = true;
    return;
  }
  reading = mine;
  again = false;
  let moves = false;
  const view = shown;
  if (!loaded) main.setAttribute('aria-busy', 'true');
  view.isReading = true;
  try {
    moves = await view.load?.();
    if (mine === round) {
      view.loaded = loaded = Date.now();
      byId('trouble')?.remove();
      if (!again && !held) {
        view.address = location.hash;
        bones.remove();
        stale(false);
      }
    }
  } catch (problem) {
    if (mine === round && problem.status !== 401) trouble(problem);
    if (mine === round && !isUnreachable()) bones.remove();
  } finally {
    view.isReading = false;
  }
  if (mine !== round) return;
  reading = 0;
  if (!again && !held) main.removeAttribute('aria-busy');
  banner();
  timer = setTimeout(tick, again ? 0 : moves || isUnreachable() ? 2000 : 15000, mine);
}

/** refresh reads the view again immediately: after something was done. isOther: a filter has changed. */
const refresh = (isOther) => {
  if (isOther === true) {
    held = false;
    if (shown) shown.address = undefined;
    stale(true);
  }
  return tick(round);
};

const go = (hash) => {
  if (location.hash === hash) open();
  else location.hash = hash;
};

function trouble(problem) {
  if (isUnreachable()) return;
  const old = byId('trouble');
  const node = el('p', { class: 'note bad', id: 'trouble', role: 'alert' }, problem.message);
  if (!old) main.firstElementChild?.querySelector('.head')?.after(node);
  else if (old.textContent !== problem.message) old.replaceWith(node);
}

function banner() {
  const bar = byId('banner');
  const text = isUnreachable() && me ? `cloudfn cannot be reached. ${loaded
    ? `What you see is ${span(Date.now() - loaded)} old. ` : ''}Trying again.` : '';
  bar.hidden = !text;
  if (bar.textContent !== text) set(bar, text);
}

/** showSignIn shows the sign-in form. */
function showSignIn(message) {
  main.removeAttribute('aria-busy'); // what was being read is not awaited any more
  title('Sign in');
  frame();
  set(main, signIn({ message, signedIn }).node);
  main.querySelector('form input').focus();
}

/** become sets the user of the page. operator: whether they may list nodes, once known. */
function become(who) {
  actFor(me = who);
  who.operator = seesNodes(who);
}

function signedIn(who) {
  const same = kept && kept.me.user.id === who.user.id && kept.me.project.id === who.project.id;
  become(who);
  if (!same) {
    sessionStorage.clear();
    lists.clear();
    kept = null;
    open();
    return;
  }
  frame();
  title(titleOf(route().part));
  set(main, kept.view.node);
  shown = kept.view;
  kept = null;
  main.querySelector('h1').focus();
  tick(++round);
}

/** close closes the dialogs, but for those that show something once. */
const close = () => document.querySelectorAll('dialog:not(.once)').forEach((d) => d.close());

/** switched shows another project of the user, and the list of what was shown. */
function switched(who) {
  close();
  history.replaceState(null, '', `#/${here().part}`);
  signedIn(who);
  say(`This is the project ${who.project.name}.`);
}

/** over is for when the session has ended automatically: what was typed in is kept for who signs in again. */
async function over() {
  const before = me;
  const now = await session('GET').catch(() => null);
  if (!me || me !== before) return undefined;
  kept = shown && { me, view: shown };
  shown = me = null;
  round++;
  clearTimeout(timer);
  close();
  if (now?.user.id === before.user.id && now.project.id !== before.project.id) return moved(before, now);
  return showSignIn('Your session has expired. Sign in again to go on.');
}

/** moved is for when another tab has switched to the project of now: what was typed in here is of the one before. */
function moved(before, now) {
  actFor(now);
  frame();
  title('Another project');
  const back = () => switchTo(before.project, signedIn).catch((problem) => (problem.status === 401
    ? showSignIn('Your session has expired. Sign in again to go on.') : say(problem.message)));
  const said = heading('Another project');
  set(main, el('div', { class: 'signin' }, said, el('p', {}, 'Another tab has switched this browser to the project ',
    el('b', {}, now.project.name), '. What was shown here is of ', el('b', {}, before.project.name), '.'),
  el('div', { class: 'row' }, button(`Go on in ${now.project.name}`, () => switched(now), { kind: 'primary' }),
    button(`Back to ${before.project.name}`, back))));
  main.removeAttribute('aria-busy');
  said.querySelector('h1').focus();
}

async function signOut(end = () => session('DELETE')) {
  try {
    await end();
  } catch (problem) {
    if (problem.status !== 401) return say(`You are still signed in: ${problem.message}`);
  }
  me = shown = kept = null;
  close();
  round++;
  clearTimeout(timer);
  sessionStorage.clear();
  lists.clear();
  history.replaceState(null, '', '#/');
  announce('You are signed out.');
  return showSignIn();
}

async function start() {
  try {
    become(await session('GET'));
  } catch (problem) {
    if (problem.status !== 401) return showSignIn(problem.status ? problem.message
      : 'cloudfn cannot be reached. Try again in a moment.');
  }
  return open(true);
}

addEventListener('hashchange', () => (me ? open() : frame()));
addEventListener('pageshow', (e) => { if (e.persisted) location.reload(); });
document.addEventListener('visibilitychange', () => tick());
document.querySelector('.skip').addEventListener('click', (e) => {
  e.preventDefault();
  main.focus();
});
events.addEventListener('over', over);
events.addEventListener('unreachable', banner);
events.addEventListener('back', () => { banner(); announce('cloudfn is reached again.'); });
setInterval(() => isUnreachable() && banner(), 1000);
start();
