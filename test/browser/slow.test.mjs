// A slow network: 6 s for each request. Nothing is silent meanwhile, and nothing wrong can be clicked.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { browser, open, order, row, settled, timeLimit, visit } from './harness.mjs';

const delay = 6_000;
const soon = { timeout: delay / 3 }; // before any answer

let chrome;
before(
  async () => {
    chrome = await browser();
    const { page, close } = await visit(chrome);
    await order(page, { name: 'slow', count: '2' });
    for (const n of [1, 2]) await row(page, `slow-${n}`).getByText('active').first().waitFor({ timeout: timeLimit });
    await close();
  },
  { timeout: 2 * timeLimit },
);
after(() => chrome?.close());

/** slowly delays every request of the page, and returns those that change something. */
async function slowly(page) {
  const changes = [];
  await page.route('**/console/api/**', async (route) => {
    if (route.request().method() !== 'GET') changes.push(route.request());
    await new Promise((done) => {
      setTimeout(done, delay);
    });
    await route.continue().catch(() => {}); // the page has left
  });
  return changes;
}

test('an action is pending at the click, and three clicks are one request', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Servers');
  await row(page, 'slow-1').waitFor();
  const changes = await slowly(page);
  const stop = page.getByRole('button', { name: 'Stop slow-1', exact: true });
  for (let n = 0; n < 3; n++) await stop.dispatchEvent('click');
  await row(page, 'slow-1').getByText('Stop…').waitFor(soon);
  assert.equal(await stop.getAttribute('aria-disabled'), 'true');
  const other = page.getByRole('button', { name: 'Delete slow-1', exact: true });
  assert.equal(await other.getAttribute('aria-disabled'), 'true', 'all of its buttons wait');
  const free = page.getByRole('button', { name: 'Stop slow-2', exact: true });
  assert.equal(await free.getAttribute('aria-disabled'), null, 'no other server waits');
  await page.locator('#toast', { hasText: 'slow-1: stop is under way.' }).waitFor();
  assert.equal(await stop.getAttribute('aria-disabled'), 'true', 'it waits until what it did was read');
  await row(page, 'slow-1').getByText('stopped').waitFor({ timeout: timeLimit });
  assert.equal(await row(page, 'slow-1').getByText('Stop…').count(), 0);
  assert.equal(changes.length, 1);
  assert.match(changes[0].headers()['idempotency-key'], /^[0-9a-f-]{36}$/);
  await close();
});

test('a list that is being read is not empty, and its rows wait for a return', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await slowly(page);
  await open(page, 'Servers');
  await page.locator('.bones').waitFor(soon);
  assert.equal(await page.getByText('No servers yet').count(), 0);
  assert.equal(await page.locator('main').getAttribute('aria-busy'), 'true');
  await row(page, 'slow-2').waitFor();
  assert.equal(await page.locator('.bones').count(), 0);
  await open(page, 'Volumes');
  await page.locator('.bones').waitFor(soon);
  await open(page, 'Servers');
  await row(page, 'slow-2').waitFor(soon);
  assert.equal(await page.locator('.box[inert]').count(), 1, 'they are not to be clicked before they were read');
  await settled(page);
  assert.equal(await page.locator('[inert]').count(), 0);
  await close();
});

test('selected servers are stopped and started together', { timeout: 3 * timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Servers');
  for (const n of [1, 2]) await page.getByLabel(`Select slow-${n}`).check();
  const many = page.getByRole('group', { name: 'Selected servers' });
  await many.getByText('2 selected').waitFor();
  await many.getByRole('button', { name: 'Clear' }).click();
  await many.waitFor({ state: 'hidden' });
  assert.equal(await page.getByLabel('Select slow-1').isChecked(), false);
  for (const [order, first] of [
    ['name', 'slow-1'],
    ['-name', 'slow-2'],
  ]) {
    await page.getByLabel('Order').selectOption(order);
    await page.locator('.box:not([inert]) tbody tr:first-child', { hasText: first }).waitFor();
  }
  await page.getByLabel('Select slow-2').check();
  await many.getByRole('button', { name: 'Stop the selected servers' }).click();
  await page.locator('#toast', { hasText: 'Stop is under way for 1 server.' }).waitFor();
  await many.waitFor({ state: 'hidden' });
  await row(page, 'slow-2').getByText('stopped').waitFor({ timeout: timeLimit });
  for (const n of [1, 2]) await page.getByLabel(`Select slow-${n}`).check();
  await many.getByRole('button', { name: 'Start the selected servers' }).click();
  await page.locator('#toast', { hasText: 'Start is under way for 2 servers.' }).waitFor();
  for (const n of [1, 2]) await row(page, `slow-${n}`).getByText('active').first().waitFor({ timeout: timeLimit });
  await close();
});

test('what a filter leaves out cannot be clicked', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Servers');
  await row(page, 'slow-2').waitFor();
  await slowly(page);
  await page.getByLabel('Name contains').fill('slow-1');
  await page.locator('.box[inert]').waitFor(soon);
  await row(page, 'slow-2').waitFor({ state: 'detached' });
  await page.locator('.box:not([inert])').waitFor();
  assert.match(page.url(), /#\/servers\?name=slow-1$/);
  await page.getByLabel('Status').selectOption('ERROR');
  await page.locator('.box[inert]').waitFor(soon);
  await page.getByText('No server is like that').waitFor();
  await page.reload();
  await page.getByRole('heading', { level: 1, name: 'Servers' }).waitFor();
  assert.equal(await page.getByLabel('Name contains').inputValue(), 'slow-1');
  assert.equal(await page.getByLabel('Status').inputValue(), 'ERROR');
  await close();
});

test('a form sends once, and says that it does', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Volumes');
  await settled(page);
  const changes = await slowly(page);
  await page.getByRole('button', { name: 'New volume' }).click();
  const dialog = page.getByRole('dialog', { name: 'New volume' });
  const create = dialog.getByRole('button', { name: 'Create' });
  await dialog.getByLabel('Name').fill('late');
  for (let n = 0; n < 3; n++) await create.dispatchEvent('click');
  await dialog.getByText('Waiting for the answer').waitFor(soon);
  await dialog.waitFor({ state: 'detached' });
  assert.equal(changes.length, 1);
  await page.unroute('**/console/api/**');
  await row(page, 'late').waitFor();
  await page.getByRole('button', { name: 'Delete late' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await row(page, 'late').waitFor({ state: 'detached', timeout: timeLimit });
  await close();
});

test('the overview shows the servers of now, and a needed field is filled', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  const figure = page.locator('.figures > div').first();
  await figure.getByText('Servers now').waitFor();
  assert.match(await figure.textContent(), /2 of \d+ allowed/);
  await page.getByRole('radio', { name: '7 days' }).check();
  await page.locator('.hour').nth(167).waitFor();
  await page.reload();
  await page.locator('.hour').nth(167).waitFor();
  await open(page, 'Launch');
  await page.getByRole('button', { name: 'Launch' }).click();
  const needed = await page.getByText('This is needed.').count();
  assert.ok(needed >= 2);
  await page.getByLabel('Name').fill('web');
  assert.equal(await page.getByText('This is needed.').count(), needed - 1);
  assert.equal(await page.getByLabel('Name').getAttribute('aria-invalid'), null);
  await close();
});

const lists = ['Servers', 'Orders', 'Leases', 'Managed', 'Callbacks', 'Connections', 'Volumes', 'Floating IPs',
  'Security groups', 'Requests'];

test('each part says that it is being read, and nothing about what it has', { timeout: 3 * timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await slowly(page);
  for (const part of ['Overview', ...lists, 'Launch']) {
    await open(page, part);
    await page.locator('main[aria-busy]').waitFor(soon);
    assert.equal(await page.locator('main .empty').count(), 0, `${part} is not known to be empty`);
    if (lists.includes(part)) assert.equal(await page.locator('.bones').count(), 1, part);
    await settled(page);
    assert.equal(await page.locator('.bones').count(), 0, part);
  }
  await close();
});

test('each part says why it could not be read, and is not called empty', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [500] });
  const fail = (route) => (route.request().method() === 'GET' && !route.request().url().endsWith('/console/api/session')
    ? route.fulfill({ status: 500, contentType: 'application/problem+json',
      body: '{"code": "internal", "status": 500, "title": "Internal Server Error", "detail": "it broke"}' })
    : route.continue());
  await page.route('**/console/api/v1/**', fail);
  for (const part of [...lists, 'Overview']) {
    await open(page, part);
    await page.getByRole('alert').getByText('it broke').waitFor();
    await settled(page);
    assert.equal(await page.locator('main .empty').count(), 0, `${part} is not known to be empty`);
    assert.equal(await page.locator('.bones').count(), 0, part);
  }
  await page.unroute('**/console/api/v1/**', fail);
  await page.getByRole('alert').waitFor({ state: 'detached' });
  await close();
});
