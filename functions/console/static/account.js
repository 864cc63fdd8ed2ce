// Who is signed in, and the end of the user's sessions.
import { el, button, clock } from './dom.js';
import { facts } from './lists.js';
import { dialog } from './dialogs.js';
import { endSessions } from './api.js';

/** account shows the session of me. signOut ends it by the function that it gets. */
export function account(me, signOut) {
  dialog('Your session', (close) => [
    facts([['Project', me.project.name], ['User', me.user.name], ['Roles', me.roles.join(', ')],
      ['Ends', `${clock(me.expires_at)} UTC, or earlier when you do not use it`]]),
    el('p', {}, 'If someone may use a browser in which you are signed in, end all your sessions.'),
    el('div', { class: 'row end' }, button('Cancel', close),
      button('End all my sessions', () => { close(); signOut(endSessions); }, { kind: 'danger' }))]);
}
