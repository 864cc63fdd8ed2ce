// The sign-in form: a password or a token of Keystone's, in exchange for a session.
import { el, set, uid, choice } from './dom.js';
import { session } from './api.js';

function field(label, attrs, note) {
  const id = uid();
  const input = el('input', { id, spellcheck: 'false', autocapitalize: 'none', ...attrs,
    'aria-describedby': `${id}-e` });
  return { input, id, node: el('div', { class: 'field' },
    el('label', { for: id }, label, note ? el('span', { class: 'soft' }, ` ${note}`) : null), input,
    el('p', { class: 'error', id: `${id}-e` })) };
}

/** signIn is the form. message says why it is shown, when there is a reason. */
export function signIn({ message, signedIn }) {
  const f = {
    user: field('User', { name: 'username', autocomplete: 'username', required: true }),
    password: field('Password', { type: 'password', name: 'password', autocomplete: 'current-password',
      required: true }),
    project: field('Project', { name: 'project', autocomplete: 'off' }, '(if you have several)'),
    user_domain: field('Domain of the user', { name: 'user_domain', value: 'Default' }),
    project_domain: field('Domain of the project', { name: 'project_domain', autocomplete: 'off' }, '(if it matters)'),
    token: field('Token', { type: 'password', name: 'token', autocomplete: 'off' }, '(of a project)'),
  };
  const said = el('p', { class: 'note', role: 'alert' });
  const choices = el('div');
  const sends = [0, 1].map(() => el('button', { class: 'primary', type: 'submit' }, 'Sign in'));
  const withPassword = el('form', { novalidate: true, onsubmit: submit }, f.user.node, f.password.node, f.project.node,
    choices,
    el('details', {}, el('summary', {}, 'More'), f.user_domain.node, f.project_domain.node), sends[0]);
  const withToken = el('form', { novalidate: true, onsubmit: submit, hidden: true }, f.token.node, sends[1]);
  let by = 'password', busy = false;
  const form = el('div', { class: 'card' }, choice('How to sign in', [['password', 'Password'], ['token', 'Token']], by,
    (v) => {
    by = v;
    withPassword.hidden = v !== 'password';
    withToken.hidden = v !== 'token';
    clear();
  }), said, withPassword, withToken);
  const hold = (now) => {
    busy = now;
    sends.forEach((b) => { b.disabled = now; set(b, now ? 'Signing in…' : 'Sign in'); });
  };
  if (message) set(said, message);

  function clear() {
    set(said);
    set(choices);
    said.classList.remove('bad');
    Object.values(f).forEach(({ input, id }) => {
      input.removeAttribute('aria-invalid');
      set(form.querySelector(`#${id}-e`));
    });
  }

  function wrong(name, text) {
    const { input, id } = f[name];
    input.setAttribute('aria-invalid', 'true');
    set(form.querySelector(`#${id}-e`), text);
    input.closest('details')?.setAttribute('open', '');
    input.focus();
  }

  function body() {
    if (by === 'token') return { token: f.token.input.value.trim() };
    const all = {};
    for (const name of ['user', 'password', 'user_domain', 'project', 'project_domain']) {
      const value = name === 'password' ? f[name].input.value : f[name].input.value.trim();
      if (value && (name !== 'project_domain' || all.project)) all[name] = value;
    }
    return all;
  }

  async function submit(event) {
    event.preventDefault();
    clear();
    const needs = by === 'token' ? ['token'] : ['user', 'password'];
    const missing = needs.filter((name) => !f[name].input.value);
    [...missing].reverse().forEach((name) => wrong(name, 'This is needed.'));
    if (missing.length || busy) return;
    hold(true);
    try {
      const who = await session('POST', body());
      f.password.input.value = f.token.input.value = '';
      signedIn(who);
    } catch (problem) {
      refused(problem);
    } finally {
      hold(false);
    }
  }

  function refused(problem) {
    const error = problem.errors.find((e) => f[e.field]);
    const names = error?.field === 'project' && offered(error);
    if (names) return choose(names);
    if (error) return wrong(error.field, error.detail);
    said.classList.add('bad');
    set(said, problem.status === 401
      ? `Keystone does not accept this ${by === 'token' ? 'token' : 'user and password'}.` : problem.message);
    return f[by === 'token' ? 'token' : 'password'].input.focus();
  }

  function choose(names) {
    set(choices, el('fieldset', { class: 'pick' }, el('legend', {}, 'Which project?'),
      names.map((name) => el('button',
        { type: 'button', onclick: () => { f.project.input.value = name; withPassword.requestSubmit(); } }, name))));
    choices.querySelector('button').focus();
  }

  return { node: el('div', { class: 'signin' }, el('h1', { tabindex: '-1' }, 'Sign in'),
    el('p', { class: 'soft' }, 'With what you sign in to OpenStack.'), form) };
}

/** offered are the projects to choose from, as the answer names them. */
function offered(error) {
  if (error.allowed?.length) return error.allowed;
  const list = /choose one of: (.+)$/.exec(error.detail);
  return list && list[1].split(', ');
}
