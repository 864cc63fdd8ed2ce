// Draws openapi.yaml with Swagger UI, and adds search, snippets, copy buttons, a navigation and the console's session.
import { describe, readSession, send, sentence, useToken } from './access.js';
import commands from './commands.mjs';
import { exampleRequest, matches, prepare, sentRequest, snippets, tokenPaths } from './snippets.mjs';

const $ = (id) => document.getElementById(id);
let spec, takesToken;

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // plain http has no clipboard
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    button.focus();
  }
  $('copied').textContent = '';
  setTimeout(() => { $('copied').textContent = 'Copied'; });
}

// The language of all snippets on the page.
let language = 'curl';
const listeners = new Set();
const subscribe = (listener) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};
const choose = (name) => {
  language = name;
  for (const listener of listeners) listener();
};

const extend = ({ React, getComponent, specSelectors }) => {
  const h = React.createElement;
  const nothing = () => () => null;

  function Copy({ text }) {
    const [isDone, setDone] = React.useState(false);
    React.useEffect(() => {
      const timer = isDone && setTimeout(() => setDone(false), 2000);
      return () => clearTimeout(timer);
    }, [isDone]);
    const click = (e) => copy(text, e.currentTarget).then(() => setDone(true));
    return h('button', { type: 'button', className: 'copy', onClick: click }, isDone ? 'Copied' : 'Copy');
  }

  function Snippets({ title, request, usages }) {
    const chosen = React.useSyncExternalStore(subscribe, () => language);
    const all = snippets(request, usages);
    const shown = chosen in all ? chosen : 'curl';
    const buttons = Object.keys(all).map((name) =>
      h('button', { key: name, type: 'button', 'aria-pressed': name === shown, onClick: () => choose(name) }, name));
    return h('div', { className: 'snippets' },
      h('h4', null, title),
      h('div', { className: 'languages', role: 'group', 'aria-label': 'Language' }, buttons),
      h('div', { className: 'code' },
        h('pre', { tabIndex: 0 }, h('code', null, all[shown])), h(Copy, { text: all[shown] })));
  }

  // Swagger UI compares only the names of tags.
  const opsFilter = (tags, phrase) => tags
    .map((group, tag) => group.update('operations', (list) => list.filter((op) => matches({
      method: op.get('method'), path: op.get('path'), summary: op.getIn(['operation', 'summary']),
      operationId: op.getIn(['operation', 'operationId']), tag }, phrase))))
    .filter((group) => group.get('operations').size);

  const Found = (Original) => (props) =>
    specSelectors.taggedOperations().size ? h(Original, props) : h('p', null, 'No operation has all these words.');

  // Prose and snippets follow the parameters. The answer to a tried request goes before them, next to the button.
  const AfterParameters = (Original) => function Responses(props) {
    const { path, method, tryItOutResponse } = props;
    const request = React.useMemo(() => exampleRequest(spec, path, method), [path, method]);
    const op = spec.paths[path][method];
    const ours = h('div', { key: 'ours' },
      op['x-prose'] && h('div', { className: 'prose' }, h(getComponent('Markdown', true), { source: op['x-prose'] })),
      h(Snippets, { title: 'Snippets', request, usages: commands[op.operationId] }));
    const responses = h(Original, { key: 'responses', ...props });
    return h('div', null, tryItOutResponse ? [responses, ours] : [ours, responses]);
  };

  const Sent = () => ({ request }) =>
    h(Snippets, { title: 'The request as a snippet', request: sentRequest(request.toJS(), takesToken) });
  const Example = (Original) => (props) => {
    const scrollable = (div) => div?.querySelector('pre')?.setAttribute('tabindex', 0);
    return h('div', { className: 'code', ref: scrollable },
      h(Original, { ...props, canCopy: false }), h(Copy, { text: props.children }));
  };

  return {
    fn: { opsFilter },
    statePlugins: { spec: { wrapActions: { updateJsonSpec: (next) => (given) => {
      spec = prepare(given);
      takesToken = tokenPaths(spec);
      describe(takesToken);
      return next(spec);
    } } } },
    wrapComponents: {
      authorizeBtn: nothing, authorizeOperationBtn: nothing, FilterContainer: nothing,
      operations: Found, responses: AfterParameters, curl: Sent, HighlightCode: Example,
    },
  };
};

function showAccess() {
  const { text, link } = sentence();
  const anchor = Object.assign(document.createElement('a'), { href: '/console/', textContent: link });
  $('access').replaceChildren(...(link ? [anchor] : []), text);
}

async function updateAccess() {
  await readSession();
  showAccess();
}

const headingOf = (tag) => $(`operations-tag-${tag}`);

// The section in view is the last one that begins in the upper part of the window.
function mark() {
  const links = [...document.querySelectorAll('#tags a')];
  const isAbove = (a) => headingOf(a.dataset.tag)?.getBoundingClientRect().top < innerHeight / 3;
  const current = links.filter(isAbove).at(-1);
  for (const a of links) {
    if (a === current && !a.hasAttribute('aria-current')) {
      a.setAttribute('aria-current', 'location');
      $('tags').scrollTo({ left: a.offsetLeft - 40 }); // where the navigation is one line
    } else if (a !== current) a.removeAttribute('aria-current');
  }
}

function fillNavigation({ specSelectors, layoutActions }) {
  const tags = specSelectors.taggedOperations().keySeq().toArray();
  $('tags').replaceChildren(...tags.map((tag) => {
    const item = document.createElement('li'), a = document.createElement('a');
    Object.assign(a, { href: `#/${encodeURIComponent(tag)}`, textContent: tag });
    a.dataset.tag = tag;
    a.addEventListener('click', (e) => {
      e.preventDefault();
      layoutActions.show(['operations-tag', tag], true); // also sets the address
      headingOf(tag).scrollIntoView();
      headingOf(tag).querySelector('button')?.focus({ preventScroll: true });
    });
    item.append(a);
    return item;
  }));
}

function search({ specSelectors, layoutActions }) {
  const phrase = $('search').value.trim();
  layoutActions.updateFilter(phrase || null);
  document.body.classList.toggle('searching', phrase !== '');
  const found = specSelectors.taggedOperations();
  const count = found.reduce((sum, group) => sum + group.get('operations').size, 0);
  $('found').textContent = phrase && `${count} operation${count === 1 ? '' : 's'}`;
  for (const a of document.querySelectorAll('#tags a')) a.parentElement.hidden = !found.has(a.dataset.tag);
  scrollTo(0, 0);
  requestAnimationFrame(mark);
}

function begin(system) {
  fillNavigation(system);
  mark();
  let timer;
  $('search').addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(() => search(system), 150);
  });
  let isPlanned = false;
  addEventListener('scroll', () => {
    if (!isPlanned) requestAnimationFrame(() => { isPlanned = false; mark(); });
    isPlanned = true;
  }, { passive: true });
}

document.addEventListener('keydown', (e) => {
  if (e.key !== '/' || !(e.ctrlKey || e.metaKey) || e.altKey) return;
  e.preventDefault();
  $('search').select();
});
$('token').addEventListener('input', (e) => {
  useToken(e.target.value);
  showAccess();
});
addEventListener('focus', updateAccess); // someone may have signed in or out in another tab
updateAccess();

const ui = SwaggerUIBundle({
  url: '/v1/openapi.yaml',
  dom_id: '#docs',
  deepLinking: true,
  syntaxHighlight: { activated: false }, // its colors have too little contrast
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  showMutatedRequest: false, // the page shows requests without what identifies the caller
  requestInterceptor: send,
  responseInterceptor: (response) => {
    if (response.status === 401 || response.url?.endsWith('/console/session')) updateAccess();
    return response;
  },
  plugins: [extend],
  onComplete: () => begin(ui.getSystem()),
});
