// The dialogs that ask: before an act that destroys, and for what an act needs.
import { el, set, button, say, uid } from './dom.js';
import { refocus } from './lists.js';

/** dialog shows a modal dialog; fill gets its close function and gives what is in it. */
export function dialog(title, fill) {
  const id = uid(), focused = document.activeElement, row = focused?.closest?.('[data-id]');
  const list = row?.parentElement, at = list ? [...list.children].indexOf(row) : 0;
  const node = el('dialog', { 'aria-labelledby': id });
  node.append(el('h2', { id }, title), ...[fill(() => node.close())].flat());
  document.body.append(node);
  node.addEventListener('close', () => {
    node.remove();
    if (list && !focused.isConnected) refocus(list, row.dataset.id, focused.dataset.key, at);
    else focused?.focus?.();
  });
  node.showModal();
  return node;
}

function question(kind, title, text, verb, act, fields) {
  dialog(title, (close) => {
    const said = el('p', { class: 'error', role: 'alert' }), wait = el('span', { class: 'waits', role: 'status' });
    const go = el('button', { type: 'submit', class: kind }, verb);
    const submit = async (event) => {
      event.preventDefault();
      if (go.disabled) return;
      go.disabled = true;
      set(wait, 'Waiting for the answer…');
      try {
        await act();
        close();
      } catch (problem) {
        set(wait);
        set(said, problem.message);
        go.disabled = false;
      }
    };
    return el('form', { novalidate: true, onsubmit: submit }, text ? el('p', {}, text) : null, fields, said,
      el('div', { class: 'row end' }, wait, button('Cancel', close), go));
  });
}

/** confirm asks before an act that destroys something or takes it away. fields are what the act reads. */
export const confirm = (title, text, verb, act, ...fields) => question('danger', title, text, verb, act, fields);

/** ask asks for what an act needs, which its fields hold. */
export const ask = (title, text, verb, act, ...fields) => question('primary', title, text, verb, act, fields);

/** labelled is an input below its words. */
export function labelled(words, input) {
  input.id ||= uid();
  return el('div', { class: 'field' }, el('label', { for: input.id }, words), input);
}

/** check is a box to tick, with its words. */
export function check(words) {
  const input = el('input', { type: 'checkbox' });
  return { input, node: el('div', { class: 'many' }, el('label', {}, input, el('span', {}, words))) };
}

/** secret shows what is shown only once, to be copied or saved, also after the session. */
export function secret(title, text, value, file) {
  const href = file && URL.createObjectURL(new Blob([value], { type: 'text/plain' }));
  const node = dialog(title, (close) => {
    const area = el('textarea', { readonly: true, class: 'mono', rows: value.includes('\n') ? 8 : 2,
      'aria-label': title, value, onfocus: () => area.select() });
    const copy = button('Copy', async () => {
      area.select();
      await navigator.clipboard?.writeText(value).catch(() => {});
      say('Copied.');
    });
    return [el('p', {}, text), area, el('div', { class: 'row end' }, copy,
      file ? el('a', { class: 'button', download: file, href }, 'Download') : null,
        button('I have it', close, { kind: 'primary' }))];
  });
  node.classList.add('once');
  if (href) node.addEventListener('close', () => URL.revokeObjectURL(href));
}
