// Who is signed in, the user's other projects, and the end of the user's sessions.
import { el, set, button, clock } from './dom.js';
import { facts } from './lists.js';
import { dialog } from './dialogs.js';
import { endSessions, projects, switchTo } from './api.js';

/** account shows the session of me. signOut ends it by the function that it gets; switched gets the session in another
  project. */
export function account(me, signOut, switched) {
  const others = el('div', {}, el('p', { class: 'soft' }, 'Your other projects are being read…'));
  const said = el('p', { class: 'error', role: 'alert' });
  let busy = false;
  async function choose(project) {
    if (busy) return;
    busy = true;
    set(said);
    await switchTo(project, switched).catch((problem) => set(said, problem.message));
    busy = false;
  }
  projects().then(({ projects: all }) => {
    const isTwice = (name) => all.filter((p) => p.name === name).length > 1;
    const list = all.filter((p) => p.id !== me.project.id);
    set(others, list.length ? el('fieldset', { class: 'pick' }, el('legend', {}, 'Switch to another project'),
      list.map((p) => button(isTwice(p.name) ? `${p.name} (${p.id})` : p.name, () => choose(p))))
      : el('p', { class: 'soft' }, 'You have no other project here.'));
  }).catch((problem) => set(others, el('p', { class: 'soft' }, `Your other projects: ${problem.message}.`)));
  dialog('Your session', (close) => [
    facts([['Project', me.project.name], ['User', me.user.name], ['Roles', me.roles.join(', ')],
      ['Ends', `${clock(me.expires_at)} UTC, or earlier when you do not use it`]]), others, said,
    el('p', {}, 'If someone may use a browser in which you are signed in, end all your sessions.'),
    el('div', { class: 'row end' }, button('Cancel', close),
      button('End all my sessions', () => { close(); signOut(endSessions); }, { kind: 'danger' }))]);
}
