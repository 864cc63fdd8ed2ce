// What lists and pages of one thing are drawn with: only what changed is drawn again, and the focus stays.
import { el, set, clock, span } from './dom.js';

/** facts makes a list of names and values; what has no value is left out. */
export function facts(pairs) {
  return el('dl', { class: 'facts' }, pairs.filter(([, v]) => v !== undefined && v !== null && v !== '' && v !== false)
    .map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v))));
}

/** swap replaces what an element holds and leaves the focus where it was: on the control of the same key,
  else on the heading. */
export function swap(node, ...children) {
  const focused = node.contains(document.activeElement) && document.activeElement;
  set(node, ...children);
  if (focused) (node.querySelector(`[data-key="${focused.dataset.key}"]`) || node.querySelector('h1'))?.focus();
}

/** keyed makes the children of parent those of items, and touches only those that changed: the focus stays. */
export function keyed(parent, items, keyOf, render) {
  const old = new Map([...parent.children].map((c) => [c.dataset.id, c]));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const row = focused?.closest('[data-id]');
  const at = [...parent.children].indexOf(row);
  let before = null;
  items.forEach((item) => {
    const key = String(keyOf(item)), sign = JSON.stringify(item);
    let node = old.get(key);
    old.delete(key);
    if (!node || node.sign !== sign) {
      const next = render(item);
      next.dataset.id = key;
      next.sign = sign;
      node?.replaceWith(next);
      node = next;
    }
    const place = before ? before.nextElementSibling : parent.firstElementChild;
    if (place !== node) parent.insertBefore(node, place);
    before = node;
  });
  old.forEach((node) => node.remove());
  if (focused && !focused.isConnected) refocus(parent, row?.dataset.id, focused.dataset.key, at);
}

/** refocus gives the focus to the control that took the place of a removed one. */
export function refocus(parent, id, key, at = 0) {
  const rows = [...parent.children];
  const row = rows.find((r) => r.dataset.id === id) || rows[Math.min(at, rows.length - 1)];
  const control = row?.querySelector(`[data-key="${key}"]`) || row?.querySelector('a, button');
  (control || document.querySelector('h1'))?.focus();
}

/** age is how long ago something was (or how long it is until then); it goes on automatically. */
export const age = (at) => el('time', { datetime: at, class: 'age',
  title: `${clock(at, true)} UTC, ${new Date(at).toLocaleString()} here` },
  span(Math.abs(Date.now() - new Date(at))));

setInterval(() => document.querySelectorAll('time.age').forEach((t) => {
  const text = span(Math.abs(Date.now() - new Date(t.dateTime)));
  if (t.textContent !== text) t.textContent = text;
}), 1000);

/** memory writes MiB as people say it. */
export const memory = (mb) => (mb >= 1024 && mb % 512 === 0 ? `${mb / 1024} GiB` : `${mb} MiB`);

/** later calls f once nothing has called it for a while. */
export function later(f, ms) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(f, ms); };
}
