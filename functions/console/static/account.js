// Who is signed in, the user's other projects, and the end of the user's sessions.
import { el, set, button, clock } from './dom.js';
import { facts } from './lists.js';
import { dialog } from './dialogs.js';
import { endSessions, session } from './api.js';

/** account shows the session of me. signOut ends it by the function that it gets, signedIn begins the one that it
  gets. */
export function account(me, signOut, signedIn) {
  const others = el('div', {}, el('p', { class: 'soft' }, 'Your other projects are being read…'));
  dialog('Your session', (close) => {
    const choose = (project) => session('PATCH', { project_id: project.id }).then((who) => { close(); signedIn(who); })
      .catch((problem) => set(others, el('p', { class: 'note bad', role: 'alert' }, problem.message)));
    session('GET', undefined, '/projects').then(({ projects }) => {
      const twice = (name) => projects.filter((p) => p.name === name).length > 1;
      const list = projects.filter((p) => p.id !== me.project.id);
      set(others, list.length ? el('fieldset', { class: 'pick' }, el('legend', {}, 'Switch to another project'),
        list.map((p) => button(twice(p.name) ? `${p.name} (${p.id})` : p.name, () => choose(p))))
        : el('p', { class: 'soft' }, 'You have no other project here.'));
    }).catch((problem) => set(others, el('p', { class: 'soft' }, `Your other projects: ${problem.message}.`)));
    return [
      facts([['Project', me.project.name], ['User', me.user.name], ['Roles', me.roles.join(', ')],
        ['Ends', `${clock(me.expires_at)} UTC, or earlier when you do not use it`]]), others,
      el('p', {}, 'If someone may use a browser in which you are signed in, end all your sessions.'),
      el('div', { class: 'row end' }, button('Cancel', close),
        button('End all my sessions', () => { close(); signOut(endSessions); }, { kind: 'danger' }))];
  });
}
