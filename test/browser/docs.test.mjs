// The API reference in a real Chromium: it draws every operation, does nothing that its policy forbids, and sends
// requests with the console's session or a token. Started by test/contract/reference_test.go.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';

const { DOCS_URL: base, DOCS_ALONE: alone, DOCS_TOKEN: token } = process.env;
const operations = process.env.DOCS_OPERATIONS.split(',');
const account = JSON.parse(process.env.DOCS_ACCOUNT);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

let chrome, page, close;
before(async () => {
  chrome = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-gpu'] });
  ({ page, close } = await visit(base, [401, 403]));
});
after(() => chrome.close());

/** visit opens the reference. close holds what happened against what must never be; expected: statuses of answers. */
async function visit(url, expected, options = {}, hash = '') {
  const context = await chrome.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: url });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const faults = [];
  page.on('console', (m) => {
    const status = Number(/status of (\d+)/.exec(m.text())?.[1]);
    if (['error', 'warning'].includes(m.type()) && !expected.includes(status)) faults.push(m.text());
  });
  page.on('pageerror', (e) => faults.push(e.stack));
  page.on('request', (r) => {
    if (!r.url().startsWith(url) && !r.url().startsWith('data:')) faults.push(`requested ${r.url()}`);
  });
  await page.addInitScript(() =>
    document.addEventListener('securitypolicyviolation', (e) =>
      console.error(`${e.violatedDirective} forbids ${e.blockedURI} ${e.sample}`),
    ),
  );
  await page.goto(`${url}/v1/docs${hash}`);
  await page.waitForSelector('.opblock');
  const close = async () => {
    const stored = await page.evaluate(() => localStorage.length + sessionStorage.length);
    assert.equal(stored, 0, 'the page stores something');
    assert.deepEqual(faults, []);
    if (process.env.DOCS_SHOT) await page.screenshot({ path: process.env.DOCS_SHOT });
    await context.close();
  };
  return { page, close };
}

/** open expands an operation. */
async function open(page, tag, id) {
  const block = page.locator(`#operations-${tag}-${id}`);
  if (!(await block.locator('.snippets').count())) await block.locator('.opblock-summary-control').click();
  await block.locator('.responses-table').first().waitFor();
  return block;
}

/** execute tries an operation, and returns what was sent and the answer. */
async function execute(page, block, body) {
  if (await block.getByRole('button', { name: 'Try it out' }).count())
    await block.getByRole('button', { name: 'Try it out' }).click();
  if (body) await block.locator('textarea').fill(JSON.stringify(body));
  const sent = page.waitForResponse((r) => /\/v1\/(callbacks|requests)/.test(r.url()));
  await block.getByRole('button', { name: 'Execute' }).click();
  const answer = await sent;
  await block.locator('.live-responses-table').waitFor();
  const { pathname } = new URL(answer.url());
  return { status: answer.status(), pathname, headers: await answer.request().allHeaders() };
}

const access = (page) => page.locator('#access').textContent();
const saying = (page, text) => page.locator('#access', { hasText: text }).waitFor();
const refocus = (page) => page.evaluate(() => dispatchEvent(new Event('focus')));
const blocks = '.operation-tag-content .opblock';
const drawn = (page) => page.$$eval(blocks, (all) => all.map((b) => b.id.split('-').at(-1)));
/** counted waits until so many operations are drawn; this one is the first. */
const counted = (page, count, first) =>
  page.waitForFunction(([selector, n, id]) => {
    const all = document.querySelectorAll(selector);
    return all.length === n && (n === 0 || all[0].id.endsWith(`-${id}`));
  }, [blocks, count, first]);

/** faultless holds our parts of the page against axe-core's rules, and the page against sideways scrolling. */
async function faultless(page, what) {
  await page.evaluate(`${axe}; globalThis.axe = axe; 0`); // from outside the page, so that its policy has no say
  const ours = ['.skip', '.top', '.side', '.snippets', '.code', '.prose', '#copied'].map((part) => [part]);
  const { violations } = await page.evaluate(
    (include) => globalThis.axe.run({ include }, { resultTypes: ['violations'] }),
    ours,
  );
  assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes[0].html.slice(0, 200)}`), [], what);
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${what} can be scrolled sideways by ${over} pixels`);
}

test('it draws every operation', async () => {
  const ids = await drawn(page);
  assert.deepEqual(operations.filter((id) => !ids.includes(id)), [], 'not drawn');
});

test('the search finds paths, summaries and operationIds', async () => {
  const all = await drawn(page);
  await page.keyboard.press('/'); // WCAG 2.1.4: a character alone does nothing, as speech input may type it
  assert.notEqual(await page.evaluate(() => document.activeElement.id), 'search');
  await page.keyboard.press('Control+/');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'search');
  for (const [phrase, first, count] of [
    ['createCallback', 'createCallback', 1],
    ['/v1/leases/availability', 'findFreeHosts', 1],
    ['subscribe a URL', 'createCallback', 1],
    ['url SUBSCRIBE', 'createCallback', 1],
    ['subscribe nothing', undefined, 0],
  ]) {
    await page.keyboard.press('Control+A');
    await page.keyboard.type(phrase);
    await page.locator('#found', { hasText: new RegExp(`^${count} operations?$`) }).waitFor();
    await counted(page, count, first);
    const tags = page.getByRole('navigation').getByRole('link');
    assert.equal(await tags.count(), count, 'tags without an operation stay');
  }
  await page.getByText('No operation has all these words.').waitFor();
  await page.keyboard.type('/');
  assert.equal(await page.inputValue('#search'), 'subscribe nothing/', 'the key is text in a field');
  await page.fill('#search', '');
  await counted(page, all.length, all[0]);
});

test('the navigation marks the section in view', async () => {
  const current = page.locator('#tags [aria-current=location]');
  await page.getByRole('navigation').getByRole('link', { name: 'servers', exact: true }).focus();
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('#tags [aria-current]')?.textContent === 'servers');
  assert.equal(new URL(page.url()).hash, '#/servers');
  assert.ok(await page.evaluate(() => document.activeElement.closest('#operations-tag-servers') !== null), 'focus');
  await page.evaluate(() => document.getElementById('operations-tag-leases').scrollIntoView());
  await page.waitForFunction(() => document.querySelector('#tags [aria-current]')?.textContent === 'leases');
  assert.equal(await current.count(), 1);
  await page.evaluate(() => scrollTo(0, 0));
  await page.waitForFunction(() => !document.querySelector('#tags [aria-current]'));
});

test('an operation has parameters, prose and snippets, in this order, and copies them', async () => {
  const block = await open(page, 'callbacks', 'createCallback');
  const order = await block.evaluate((b) =>
    [...b.querySelectorAll('table.parameters, .prose, .snippets, .responses-wrapper')].map((e) => e.className));
  assert.deepEqual(order, ['parameters', 'prose', 'snippets', 'responses-wrapper']);
  assert.equal(await block.locator('.opblock-description').count(), 0, 'prose is drawn twice');
  const snippets = block.locator('.snippets');
  const languages = snippets.getByRole('group', { name: 'Language' }).getByRole('button');
  assert.deepEqual(await languages.allTextContents(), ['curl', 'CLI', 'Python', 'Go', 'JavaScript']);
  for (const [name, text] of [
    ['curl', 'curl -X POST "$CLOUDFN_URL/v1/callbacks"'], ['CLI', 'cloudfn callbacks create URL'],
    ['Python', 'os.environ["OS_TOKEN"]'], ['Go', 'os.Getenv("OS_TOKEN")'], ['JavaScript', 'process.env.OS_TOKEN'],
  ]) {
    const button = snippets.getByRole('button', { name, exact: true });
    await button.focus();
    await page.keyboard.press('Space');
    assert.equal(await button.getAttribute('aria-pressed'), 'true');
    const shown = await snippets.locator('pre').textContent();
    assert.ok(shown.includes(text), shown);
    await snippets.getByRole('button', { name: /Cop/ }).click();
    await page.locator('#copied', { hasText: 'Copied' }).waitFor({ state: 'attached' });
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), shown);
  }
  const example = block.locator('.opblock-section-request-body .code');
  await example.getByRole('button', { name: /Cop/ }).click();
  await example.getByRole('button', { name: 'Copied' }).waitFor();
  assert.match(JSON.parse(await page.evaluate(() => navigator.clipboard.readText())).url, /^https:/);
  const other = await open(page, 'process', 'getReference');
  const offered = await other.locator('.snippets').getByRole('group').getByRole('button').allTextContents();
  assert.deepEqual(offered, ['curl', 'Python', 'Go', 'JavaScript'], 'no command has this operation');
  await faultless(page, 'light');
  assert.equal(await page.locator('.authorize').count(), 0);
});

test('requests are sent with the session of the console', async () => {
  await saying(page, 'Sign in at the console');
  assert.equal(await page.locator('#access a').getAttribute('href'), '/console/');
  const list = await open(page, 'callbacks', 'listCallbacks');
  assert.equal((await execute(page, list)).status, 401);

  const signedIn = await page.request.post(`${base}/console/session`, {
    data: { user: account.user, password: account.password, project: account.project },
    headers: { 'X-Cloudfn-Console': '1' },
  });
  assert.equal(signedIn.status(), 201, await signedIn.text());
  await refocus(page); // as a person does who comes back from the console's tab
  await saying(page, `Requests are sent as ${account.user} in project ${account.project}.`);
  const read = await execute(page, list);
  assert.deepEqual([read.status, read.pathname], [200, '/console/api/v1/callbacks']);
  assert.equal(read.headers['x-cloudfn-console'], '1');
  assert.match(read.headers['x-cloudfn-user'], /^[0-9a-f]{32}\/[0-9a-f]{32}$/);
  assert.equal(read.headers['x-auth-token'], undefined);

  const create = await open(page, 'callbacks', 'createCallback');
  const made = await execute(page, create, { url: 'http://127.0.0.1:9/reference' });
  assert.deepEqual([made.status, made.pathname], [201, '/console/api/v1/callbacks']);
  assert.match(made.headers['idempotency-key'], /^[0-9a-f]{32}$/);
  await page.locator('#operations-callbacks-createCallback').getByRole('button', { name: 'curl' }).first().click();
  const sent = await create.locator('.responses-inner .snippets pre').textContent();
  assert.match(sent, /"\$CLOUDFN_URL\/v1\/callbacks"[^]*X-Auth-Token: \$OS_TOKEN[^]*127\.0\.0\.1:9\/reference/);
  assert.doesNotMatch(sent, /console/i);

  const unprotected = await page.evaluate(() => fetch('/console/api/v1/callbacks', { method: 'POST', body: '{}' })
    .then((r) => r.status));
  assert.equal(unprotected, 403, 'a write without the page\'s header');

  await page.request.delete(`${base}/console/session`, { headers: { 'X-Cloudfn-Console': '1' } });
  assert.equal((await execute(page, list)).status, 401);
  await saying(page, 'Sign in at the console');
});

test('requests are sent with a token, which the page does not show', async () => {
  await page.getByLabel('Keystone token').fill(token);
  assert.equal(await access(page), 'Requests are sent with this token.');
  const list = await open(page, 'callbacks', 'listCallbacks');
  const read = await execute(page, list);
  assert.deepEqual([read.status, read.pathname, read.headers['x-auth-token']], [200, '/v1/callbacks', token]);
  assert.ok(!(await page.content()).includes(token));
  await page.getByLabel('Keystone token').fill('');
  await close();
});

test('without the console it takes a token', async () => {
  const { page, close } = await visit(alone, [404]);
  await saying(page, 'The console is not served here');
  await page.getByLabel('Keystone token').fill(token);
  const read = await execute(page, await open(page, 'stats', 'listRequests'));
  assert.deepEqual([read.status, read.pathname], [200, '/v1/requests']);
  await close();
});

for (const [name, viewport, colorScheme, hash] of [
  ['dark', { width: 1280, height: 860 }, 'dark', '#/callbacks/createCallback'],
  ['phone', { width: 390, height: 844 }, 'light', ''],
]) {
  test(`it has no faults, ${name}`, async () => {
    const { page, close } = await visit(base, [401], { viewport, colorScheme }, hash);
    if (hash) await page.locator('#operations-callbacks-createCallback .snippets').waitFor();
    const current = () => document.querySelector('#tags [aria-current]')?.textContent === 'callbacks';
    await page.locator('#tags').getByText('callbacks').click();
    await page.waitForFunction(current);
    const block = await open(page, 'callbacks', 'createCallback');
    await block.getByRole('button', { name: 'Try it out' }).click();
    await faultless(page, name);
    const copied = await block.locator('.snippets').evaluate(async ({ children }) => {
      const { clipboard } = navigator;
      Object.defineProperty(navigator, 'clipboard', { value: undefined }); // as over plain http
      const [code, copy] = children[children.length - 1].children;
      copy.click();
      await new Promise((done) => { setTimeout(done, 300); });
      return { shown: code.textContent, read: await clipboard.readText() };
    });
    assert.equal(copied.read, copied.shown);
    const ink = await page.evaluate(() =>
      ['body', '.opblock-summary-path', '.prose p'].map((s) => getComputedStyle(document.querySelector(s)).color));
    const sum = (color) => color.match(/\d+/g).slice(0, 3).reduce((all, n) => all + Number(n), 0);
    for (const color of ink) assert.equal(sum(color) > 384, colorScheme === 'dark', `${name}: ${ink}`);
    await close();
  });
}
