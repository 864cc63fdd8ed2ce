// The words and marks of states: a word and a shape, so that no one has to tell colors apart.
import { el, svg } from './dom.js';

// What Nova's status is in the API's words, and which actions it then allows (shared/domain says both).
const states = {
  BUILD: 'building', ACTIVE: 'active', SHUTOFF: 'stopped', SHELVED: 'shelved', SHELVED_OFFLOADED: 'shelved',
    PAUSED: 'paused', SUSPENDED: 'suspended',
  RESIZE: 'resizing', VERIFY_RESIZE: 'resizing', REVERT_RESIZE: 'resizing',
  REBOOT: 'rebooting', HARD_REBOOT: 'rebooting', RESCUE: 'rescued', ERROR: 'error', UNKNOWN: 'unknown',
    DELETED: 'deleted', SOFT_DELETED: 'deleted',
};
const moves = {
  active: ['stop', 'reboot', 'hard', 'shelve', 'snapshot'],
  stopped: ['start', 'hard', 'shelve', 'snapshot'], shelved: ['unshelve'],
  paused: ['unpause', 'hard', 'shelve', 'snapshot'], suspended: ['resume', 'hard', 'shelve', 'snapshot'],
  rebooting: ['hard'], error: ['stop', 'hard'], rescued: ['unrescue'],
};
const resized = ['confirm_resize', 'revert_resize'];
// More of them, on the page of one server. A lock and a name can be changed in every state but these.
const rare = { active: ['pause', 'suspend', 'resize', 'rebuild', 'rescue'], stopped: ['resize', 'rebuild', 'rescue'],
  error: ['rebuild', 'rescue'] };
const fixed = ['requested', 'unknown', 'deleting', 'deleted'];

const moving = ['requested', 'building', 'rebooting', 'updating', 'resizing', 'deleting', 'running', 'due',
  'starting', 'ending', 'joining', 'leaving', 'creating', 'migrating', 'confirming'];

/** inMotion tells that a state is going to change automatically soon. */
export const inMotion = (state) => moving.includes(state);

/** stateOf is the state of a server: what we know is going on, else what Nova says. */
export function stateOf(server) {
  const known = server.instance?.state;
  return known && ['deleting', 'updating', 'rebooting'].includes(known) ? known : states[server.status] || known ||
    'updating';
}

const removal = (state) => (['deleting', 'deleted'].includes(state) ? [] : ['delete']);

/** actions are the frequent actions that a state allows. */
export const actions = (state) => [...(moves[state] || []), ...removal(state)];

/** allActions are all the actions that a server allows. */
export function allActions(server) {
  const state = stateOf(server);
  const own = fixed.includes(state) ? [] : ['rename', server.locked ? 'unlock' : 'lock'];
  const ends = server.status === 'VERIFY_RESIZE' && state === 'resizing' ? resized : [];
  return [...(moves[state] || []), ...ends, ...(rare[state] || []), ...own, ...removal(state)];
}

const good = ['active', 'ready', 'done', 'verified', 'delivered', 'moved', 'up', 'proven'];
const bad = ['error', 'failed', 'dead', 'lost', 'gone', 'partial', 'rolled_back', 'down', 'degraded'];

const shapes = {
  good: () => svg('circle', { cx: 6, cy: 6, r: 5 }),
  bad: () => svg('path', { d: 'M6 .8 11.6 11H.4z' }),
  moving: () => [svg('circle', { cx: 6, cy: 6, r: 4.2, class: 'ring' }),
    svg('path', { d: 'M6 1.8A4.2 4.2 0 0 1 10.2 6', class: 'arc' })],
  waiting: () => svg('path', { d: 'M6 .6 11.4 6 6 11.4.6 6z' }),
  still: () => svg('circle', { cx: 6, cy: 6, r: 4.2, class: 'ring' }),
};

/** kindOf is how a state looks. */
export function kindOf(state) {
  if (good.includes(state)) return 'good';
  if (bad.includes(state)) return 'bad';
  if (inMotion(state)) return 'moving';
  return ['pending', 'unknown', 'rescued', 'suspended', 'suspect'].includes(state) ? 'waiting' : 'still';
}

/** mark shows a state, with a word of its own if that says more. */
export function mark(state, word) {
  const kind = kindOf(state);
  return el('span', { class: `mark ${kind}` }, svg('svg', { viewBox: '0 0 12 12', 'aria-hidden': 'true' },
    [shapes[kind]()].flat()), word || state.replace('_', ' '));
}
