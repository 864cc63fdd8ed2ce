// The project's servers, and one of them in full.
import { el, set, button, heading, table, empty, clock, say, announce, uid } from './dom.js';
import { swap, facts, keyed, age, memory, later } from './lists.js';
import { get, call, listing } from './api.js';
import { confirm, ask, labelled } from './dialogs.js';
import { mark, stateOf, inMotion, actions, allActions } from './state.js';
import { acts, isSoon, left } from './leaseacts.js';
import { attached } from './attached.js';
import { past } from './history.js';
import { filter, keep } from './address.js';

const verbs = { start: 'Start', stop: 'Stop', reboot: 'Reboot', hard: 'Hard reboot', shelve: 'Shelve',
  unshelve: 'Unshelve', snapshot: 'Snapshot', pause: 'Pause', unpause: 'Unpause', suspend: 'Suspend', resume: 'Resume',
  resize: 'Resize', confirm_resize: 'Confirm resize', revert_resize: 'Revert resize', rebuild: 'Rebuild',
  rescue: 'Rescue', unrescue: 'Unrescue', rename: 'Rename', lock: 'Lock', unlock: 'Unlock', delete: 'Delete' };
const title = (server) => server.name || server.id;
/** word is the state, or what Nova calls one that has no word of its own, such as verify_resize. */
const word = (server, state) => (state === 'updating' && server.instance?.state !== 'updating'
  ? server.status.toLowerCase().replaceAll('_', ' ') : state);

/** actionRequest is the body that requests an action by its verb here. */
const actionRequest = (verb) => (verb === 'hard' ? { action: 'reboot', hard: true } : { action: verb });

const pending = new Map(); // by the id of a server: {verb, answered} of the action that was requested
const paint = (id) => document.querySelectorAll(`.acts[data-server="${id}"]`).forEach((box) => box.paint());

/** requested has all buttons of a server wait, wherever they are drawn, until what an action did has been read. */
async function requested({ id }, verb, work) {
  const own = { verb };
  pending.set(id, own);
  paint(id);
  try {
    const answer = await work();
    own.answered = true;
    return answer;
  } catch (problem) {
    if (pending.get(id) === own) pending.delete(id);
    paint(id);
    throw problem;
  }
}

/** answered are the actions that were answered before a read that begins now. */
const answered = () => [...pending].filter(([, action]) => action.answered);

/** settle ends the waiting for actions whose servers have been read since, and paints what is drawn of them in node. */
function settle(actions, node) {
  actions.forEach(([id, action]) => { if (pending.get(id) === action) pending.delete(id); });
  node.querySelectorAll('.acts[data-server]').forEach((box) => box.paint());
}

/** controls are the buttons of actions on the server. done is called after each. */
function controls(server, verbsOf, done) {
  const send = (verb, body) => requested(server, verb,
    () => call('POST', `/v1/servers/${server.id}/actions`, { ...actionRequest(verb), ...body }));
  const act = async (verb) => {
    const answer = await send(verb);
    say(answer.changed ? `${title(server)}: ${verbs[verb].toLowerCase()} is under way.`
      : ['lock', 'unlock'].includes(verb) ? `${title(server)} is ${verb}ed already.`
        : `${title(server)} is ${answer.state} already.`);
    done(verb);
  };
  const refused = (problem) => {
    const allowed = problem.errors.find((e) => e.field === 'action')?.allowed;
    say(`${title(server)}: ${problem.message}${allowed ? `. It allows: ${allowed.join(', ')}` : ''}.`);
    done();
  };
  const remove = () => {
    const found = server.instance?.origin === 'connected', path = `/v1/servers/${server.id}`;
    const parts = el('p', { class: 'soft' });
    confirm(`Delete ${title(server)}?`, found
      ? 'This server was there before it was connected. It is deleted with its disk for good.'
      : 'The server and its disk are deleted for good.', 'Delete', async () => {
      // Else the dry run may find a server that is deleted.
      await Promise.race([shown, new Promise((done) => { setTimeout(done, 2000); })]);
      await requested(server, 'delete', () => call('DELETE', found ? `${path}?force=true` : path));
      say(`${title(server)} is being deleted.`);
      done('delete');
    }, parts);
    const shown = call('DELETE', `${path}?dry_run=true&force=true`, undefined, true).then((d) => {
      const all = [...d.volumes, ...d.floating_ips], names = (list) => list.map((i) => i.name || i.address || i.id);
      const goes = names(all.filter((i) => i.deleted)), stays = names(all.filter((i) => !i.deleted));
      set(parts, goes.length ? `With it: ${goes.join(', ')}. ` : '',
        stays.length ? `These stay: ${stays.join(', ')}.` : '');
    }).catch(() => {}); // the deletion says what is wrong
  };
  const snapshot = () => {
    const name = el('input', { required: true, maxlength: 255, value: server.name });
    ask(`Make an image of ${title(server)}?`, '', 'Make an image', async () => {
      const { image_id: image } = await send('snapshot', { name: name.value });
      say(`${title(server)}: the image ${image} is being made.`);
      done('snapshot');
    }, labelled('Name of the image', name));
  };
  const rename = () => {
    const name = el('input', { required: true, maxlength: 255, value: server.name });
    ask(`Rename ${title(server)}`, '', 'Rename', async () => {
      await send('rename', { name: name.value });
      say(`${title(server)} is called ${name.value} now.`);
      done('rename');
    }, labelled('New name', name));
  };
  const resize = async () => {
    const { flavors } = await get('/v1/resources?kinds=flavors');
    const others = (flavors || []).filter((f) => f.name !== server.flavor.name);
    const flavor = el('select', {}, others.map((f) => el('option', { value: f.id },
      `${f.name}: ${f.vcpus} vCPU, ${memory(f.ram_mb)}, ${f.disk_gb} GiB disk`)));
    const about = 'It restarts, and then waits until the resize is confirmed or reverted.';
    ask(`Resize ${title(server)}?`, about, 'Resize', async () => {
      await send('resize', { flavor: flavor.value });
      say(`${title(server)}: resize is under way.`);
      done('resize');
    }, labelled('New flavor', flavor));
  };
  const rebuild = async () => {
    const { images } = await get('/v1/resources?kinds=images');
    const image = el('select', {}, (images || []).filter((i) => i.status === 'active')
      .map((i) => el('option', { value: i.id, selected: i.id === server.image?.id }, i.name || i.id)));
    confirm(`Rebuild ${title(server)}?`, 'Its disk is recreated from the image. What is on the disk is lost for good.',
      'Rebuild', async () => {
        await send('rebuild', { image: image.value, confirm_rebuild: true });
        say(`${title(server)}: rebuild is under way.`);
        done('rebuild');
      }, labelled('Image', image));
  };
  const rescue = async () => {
    const { images } = await get('/v1/resources?kinds=images');
    const image = el('select', {}, el('option', { value: '' }, 'Nova chooses one'),
      (images || []).filter((i) => i.status === 'active').map((i) => el('option', { value: i.id }, i.name || i.id)));
    ask(`Rescue ${title(server)}?`, 'It boots from the image, with its own disk as a second one, until it is ' +
      'unrescued.', 'Rescue', async () => {
        const { admin_password: password } = await send('rescue', image.value ? { image: image.value } : {});
        say(`${title(server)}: rescue is under way.${password ? ` Its password is ${password}` : ''}`);
        done('rescue');
      }, labelled('Image', image));
  };
  const own = { delete: remove, snapshot, rename, resize: () => resize().catch(refused),
    rebuild: () => rebuild().catch(refused), rescue: () => rescue().catch(refused) };
  const word = el('span', { class: 'waits', role: 'status' });
  const all = verbsOf.map((verb) => button(verbs[verb], own[verb] || (() => act(verb).catch(refused)),
    { kind: verb === 'delete' ? 'quiet danger' : 'quiet', key: verb, label: `${verbs[verb]} ${title(server)}` }));
  const box = el('div', { class: 'acts', 'data-server': server.id }, word, all);
  box.paint = () => {
    const verb = pending.get(server.id)?.verb;
    if (word.verb !== verb) set(word, verb && mark('updating', `${verbs[verb]}…`));
    word.verb = verb;
    all.forEach((b) => (verb ? b.setAttribute('aria-disabled', 'true') : b.removeAttribute('aria-disabled')));
  };
  box.paint();
  return box;
}

const addresses = (server) => [...server.addresses].sort((a, b) => a.version - b.version).map((a) => el('span',
  { class: 'address', title: `${a.network}, ${a.type}` }, a.ip, a.type === 'floating'
  ? el('small', { class: 'soft' }, ' floating') : null));

/** changes tells of the states that have changed since the last look. */
function changes(before, servers) {
  const said = servers.filter((s) => before.has(s.id) && before.get(s.id) !== stateOf(s)).map((s) =>
    `${title(s)}: ${stateOf(s)}`);
  if (said.length) announce(said.length > 3 ? `${said.length} servers have changed` : said.join('. '));
  return new Map(servers.map((s) => [s.id, stateOf(s)]));
}

/** warm keeps the eye on what was just requested, until it shows. */
const warm = () => ({ until: 0, touch() { this.until = Date.now() + 15000; },
  get on() { return Date.now() < this.until; } });

const sorts = [['', 'Newest first'], ['created_at', 'Oldest first'], ['name', 'By name'], ['-name', 'By name, Z to A'],
  ['-updated_at', 'Changed last']];

/** selection is what people have selected of the list, and what they can do with all of it. */
function selection(done) {
  const chosen = new Set(), node = el('div', { class: 'row', role: 'group', 'aria-label': 'Selected servers' });
  let servers = [];

  // No more than four at a time, and the rest although one fails.
  async function each(verb, all, send) {
    const left = [...all], failed = [];
    await Promise.all([1, 2, 3, 4].map(async () => {
      for (let one = left.shift(); one; one = left.shift()) {
        await requested(one, verb, () => send(one))
          .catch((problem) => failed.push(`${title(one)}: ${problem.message}`));
      }
    }));
    const count = all.length - failed.length;
    say([`${verbs[verb]} is under way for ${count} server${count === 1 ? '' : 's'}.`, ...failed].join(' '));
    chosen.clear();
    done();
  }

  function act(verb, all) {
    if (verb !== 'delete') return each(verb, all, ({ id }) => call('POST', `/v1/servers/${id}/actions`,
      actionRequest(verb)));
    return confirm(`Delete ${all.length} servers?`, `${all.map(title).join(', ')}: they and their disks are deleted ` +
      'for good.', 'Delete', () => each(verb, all, ({ id }) => call('DELETE', `/v1/servers/${id}`)));
  }

  function draw() {
    const all = servers.filter(({ id }) => chosen.has(id));
    const common = Object.keys(verbs).filter((verb) => verb !== 'snapshot' &&
      all.every((s) => actions(stateOf(s)).includes(verb)));
    node.hidden = !all.length;
    const sign = JSON.stringify([all.length, common]);
    if (sign === node.sign) return;
    node.sign = sign;
    set(node, el('span', {}, `${all.length} selected`), common.map((verb) => button(verbs[verb],
      () => act(verb, servers.filter(({ id }) => chosen.has(id))), { kind: verb === 'delete' ? 'quiet danger' : 'quiet',
        key: verb, label: `${verbs[verb]} the selected servers` })),
    button('Clear', () => { chosen.clear(); uncheck(); draw(); }, { kind: 'quiet' }));
  }
  const uncheck = () => document.querySelectorAll('[data-key=pick]').forEach((box) => {
    box.checked = chosen.has(box.value);
  });

  draw();
  return {
    node,
    box(server) {
      const input = el('input', { type: 'checkbox', value: server.id, 'data-key': 'pick',
        'aria-label': `Select ${title(server)}`, onchange: () => {
          if (input.checked) chosen.add(server.id);
          else chosen.delete(server.id);
          draw();
        } });
      input.checked = chosen.has(server.id);
      return input;
    },
    show(now) {
      servers = now;
      uncheck();
      draw();
    },
  };
}

export function view({ id, refresh, hold, go }) {
  return id ? one(id, refresh, go) : all(refresh, hold);
}

function all(refresh, hold) {
  const pages = listing('servers'), hot = warm();
  let before = new Map();
  const reload = () => {
    if (!node.isConnected) return; // the user has left while the name was typed
    pages.reset();
    keep({ name: name.value.trim(), status: status.value, sort: sort.value });
    refresh(true);
  };
  const typed = later(reload, 300);
  const name = el('input', { type: 'search', id: uid(), placeholder: 'Name contains', 'aria-label': 'Name contains',
    value: filter('name'), oninput: () => { hold(); typed(); } });
  const status = el('select', { id: uid(), 'aria-label': 'Status', onchange: reload },
    [['', 'Any status'], ['ACTIVE', 'Active'], ['SHUTOFF', 'Stopped'], ['BUILD', 'Building'],
    ['ERROR', 'Error'], ['REBOOT', 'Rebooting'], ['SHELVED_OFFLOADED', 'Shelved'], ['PAUSED', 'Paused'],
      ['SUSPENDED', 'Suspended']].map(([v, text]) => el('option', { value: v }, text)));
  if ([...status.options].some((o) => o.value === filter('status'))) status.value = filter('status');
  const sort = el('select', { 'aria-label': 'Order', onchange: reload }, sorts.map(([v, text]) => el('option',
    { value: v }, text)));
  if (sorts.some(([v]) => v === filter('sort'))) sort.value = filter('sort');
  const many = selection(() => { hot.touch(); refresh(); });
  const list = table('Servers of the project',
    [['Name'], ['Status'], ['Addresses'], ['Flavor'], ['Age', 'n'], ['Actions', 'acting'], ['Select', 'n']]);
  list.node.hidden = true;
  const nothing = el('div');
  const more = button('Show more', () => { pages.more(); refresh(); });
  more.hidden = true;
  const launch = el('a', { class: 'button primary', href: '#/launch' }, 'Launch');
  const node = el('div', {}, heading('Servers', name, status, sort, launch), many.node, list.node, nothing, more);

  const row = (server) => list.row(el('a', { href: `#/servers/${server.id}`, 'data-key': 'open' }, title(server)),
    mark(stateOf(server), server.partial ? 'cell is down' : word(server, stateOf(server))), addresses(server),
    server.partial ? '' : el('span',
      { title: `${server.flavor.vcpus} vCPUs, ${memory(server.flavor.ram_mb)}, ${server.flavor.disk_gb} GiB` },
      server.flavor.name), age(server.created_at),
    controls(server, actions(stateOf(server)), () => { hot.touch(); refresh(); }), many.box(server));

  async function load() {
    const query = new URLSearchParams();
    if (name.value.trim()) query.set('name', name.value.trim());
    if (status.value) query.set('status', status.value);
    const requested = String(query), done = answered();
    if (sort.value) query.set('sort', sort.value);
    const servers = await pages.load(`/v1/servers${query.size ? `?${query}` : ''}`);
    before = changes(before, servers);
    list.node.hidden = !servers.length;
    keyed(list.body, servers, (s) => s.id, row);
    settle(done, list.node);
    many.show(servers);
    more.hidden = !pages.rest;
    set(nothing, servers.length ? null : requested ? empty('No server is like that', 'Change the filter to see others.')
      : empty('No servers yet', 'What you launch shows up here, and is updated automatically. ',
        el('a', { href: '#/launch' }, 'Launch your first server'), '.'));
    return hot.on || servers.some((s) => inMotion(stateOf(s)));
  }
  return { node, load };
}

function one(id, refresh, go) {
  const body = el('div'), head = el('div'), hot = warm();
  const history = past();
  const lines = el('pre', { class: 'card mono', hidden: true });
  const read = button('Console log', () => get(`/v1/servers/${id}/console`).then(({ output }) => {
    lines.hidden = false;
    lines.textContent = output || 'Nothing was written to it.';
  }).catch((problem) => say(`The console log: ${problem.message}.`)), { kind: 'quiet' });
  const parts = attached(id, () => { hot.touch(); refresh(); });
  const node = el('div', {}, el('p', { class: 'crumb' }, el('a', { href: '#/servers' }, 'Servers')), head, body,
    parts.node, el('p', {}, read), lines, history.node);
  set(head, heading('Server'));
  let before = new Map(), sign = '', log = '';

  async function load() {
    const done = answered().filter(([of]) => of === id);
    let server;
    try {
      server = await get(`/v1/servers/${id}`);
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      notFound(problem);
      return false;
    }
    before = changes(before, [server]);
    const of = server.instance?.lease_id;
    const lease = of && await get(`/v1/leases/${of}`).catch(() => ({ id: of, name: of }));
    const now = JSON.stringify([server, lease]);
    if (now !== sign) draw(server, lease);
    settle(done, node);
    if ((now !== sign || hot.on) && !server.partial) await parts.load(server);
    sign = now;
    if (log !== stateOf(server)) history.load(server).catch(() => {});
    log = stateOf(server);
    const { agent } = server.instance || {};
    return hot.on || inMotion(stateOf(server)) || Boolean(lease && isSoon(lease)) || Boolean(agent && !agent.ready_at);
  }

  function notFound(problem) {
    if (sign) say('The server is deleted.');
    if (sign) return go('#/servers');
    return set(body, empty('There is no such server', problem.message));
  }

  const leased = (lease) => [el('a', { href: `#/leases/${lease.id}` }, lease.name), ' ', lease.status &&
    [mark(lease.status), ' ', left(lease), el('div', { class: 'acts' }, acts(lease, () => { hot.touch(); refresh(); },
      true))]].flat();

  function draw(server, lease) {
    const state = stateOf(server);
    swap(head, heading(title(server), controls(server, allActions(server), () => { hot.touch(); refresh(); })));
    const i = server.instance, f = server.flavor, known = !server.partial;
    set(body, known ? null : el('p', { class: 'note' },
      'The server\'s cell is down: only its id, its status and its times are known.'), server.fault
      ? el('p', { class: 'note bad' }, el('b', {}, `Nova says (${server.fault.code}): `), server.fault.message) : null,
      el('div', { class: 'card' }, facts([
        ['Status', [mark(state, word(server, state)), el('span', { class: 'soft' }, ` Nova: ${server.status}`)]],
          ['Locked', server.locked && 'Nova rejects other actions until it is unlocked'],
          ['Addresses', addresses(server)],
        ['Flavor', known && `${f.name}: ${f.vcpus} vCPU, ${memory(f.ram_mb)}, ${f.disk_gb} GiB disk`],
        ['Security groups', server.security_groups?.join(', ')],
          ['Server groups', server.server_groups?.map((g) => g.name || g.id).join(', ')],
        ['Tags', server.tags?.join(', ')],
        ['Metadata', server.metadata && Object.entries(server.metadata).map(([k, v]) => `${k}=${v}`).join(', ')],
        ['Image', known && el('span', { class: 'mono' },
          server.image ? server.image.name || server.image.id : 'boots from a volume')],
          ['Key', server.key_name], ['Zone', server.zone],
        ['Created', [clock(server.created_at, true), ' UTC, ', age(server.created_at), ' ago']],
          ['Server', el('span', { class: 'mono' }, server.id)],
        ['Instance', i ? [el('span', { class: 'mono' }, i.id), ` ${i.origin}, ${i.state}`] : 'not tracked'],
        ['Connection', i?.connection_id ? el('span', { class: 'mono' }, i.connection_id) : null],
        ['Lease', lease && leased(lease)],
        ['Agent', i?.agent ? [el('span', { class: 'mono' }, i.agent.image), i.agent.ready_at
          ? ` ready since ${clock(i.agent.ready_at)} UTC` : ' on its way'] : null],
      ])));
  }
  return { node, load };
}
