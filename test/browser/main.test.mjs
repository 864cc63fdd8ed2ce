// The main job, as make test runs it: sign in, launch, see, stop, start and delete; and axe-core's rules on each page.
// The other files here run in make test-long.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { account, browser, faultless, open, order, timeLimit, row, settled, signIn, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

const active = (page, name) =>
  row(page, name).getByText('Active', { exact: false }).first().waitFor({ timeout: timeLimit });
const toast = (page, text) => page.locator('#toast', { hasText: text }).waitFor();
const look = async (page, name) => {
  await settled(page);
  assert.equal(await page.getByRole('heading', { level: 1 }).count(), 1, `${name} has one h1`);
  await faultless(page, name);
};

test(
  'a launch by the form, seen to the end without a reload; then stop, start and delete',
  { timeout: 4 * timeLimit },
  async () => {
    const { page, close } = await visit(chrome);
    const loads = [];
    page.on('request', (r) => {
      if (r.isNavigationRequest()) loads.push(r.url());
    });
    await order(page, { name: 'web' });
    await page.getByRole('heading', { level: 1, name: 'web' }).waitFor();
    await active(page, 'web');
    await look(page, 'order');
    await open(page, 'Servers');
    await active(page, 'web');
    await look(page, 'servers');
    await row(page, 'web')
      .getByText(/\d+\.\d+\.\d+\.\d+/)
      .first()
      .waitFor();
    await page.getByRole('button', { name: 'Stop web', exact: true }).click();
    await toast(page, 'web: stop is under way.');
    await row(page, 'web').getByText('stopped').waitFor({ timeout: timeLimit });
    await page.getByRole('button', { name: 'Start web', exact: true }).click();
    await active(page, 'web');
    await page.getByLabel('Name contains').fill('nothing like this');
    await page.getByText('No server is like that').waitFor();
    await page.getByLabel('Name contains').fill('we');
    await row(page, 'web').getByRole('link').click();
    await page.getByRole('heading', { level: 1, name: 'web' }).waitFor();
    await page.getByText('m1.tiny: 1 vCPU').waitFor();
    await look(page, 'server');
    const states = page.getByRole('table', { name: /^States of the server/ });
    await states.getByRole('row').filter({ hasText: 'stop' }).filter({ hasText: account.user }).first().waitFor();
    await page.getByRole('radio', { name: 'Requests' }).check();
    await page
      .getByRole('table', { name: /^Requests about the server/ })
      .getByText('/actions')
      .first()
      .waitFor();
    await page.goBack();
    await page.waitForURL(/#\/servers\?name=we$/);
    await page.getByRole('heading', { level: 1, name: 'Servers' }).waitFor();
    assert.equal(await page.getByLabel('Name contains').inputValue(), 'we', 'Back finds the filter');
    await open(page, 'Servers');
    await page.getByRole('button', { name: 'Delete web', exact: true }).click();
    const dialog = page.getByRole('dialog', { name: 'Delete web?' });
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    assert.equal(
      await page.evaluate(() => document.activeElement.getAttribute('aria-label')),
      'Delete web',
      'the focus is back',
    );
    await page.keyboard.press('Enter');
    await look(page, 'confirm');
    await dialog.getByRole('button', { name: 'Delete' }).click();
    await toast(page, 'web is being deleted.');
    await row(page, 'web').waitFor({ state: 'detached', timeout: timeLimit });
    assert.deepEqual(loads, []);
    await close();
  },
);

test('every other page is there, and has no fault', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { signedIn: false });
  await look(page, 'sign-in');
  await signIn(page);
  await page.locator('.hour').nth(23).waitFor();
  await look(page, 'overview');
  await open(page, 'Launch');
  await page.getByRole('option', { name: /m1\.tiny/ }).waitFor({ state: 'attached' });
  await look(page, 'launch');
  const pages = [
    ['Orders', page.getByText('No orders yet').or(page.getByRole('table'))],
    ['Leases', page.getByRole('link', { name: 'workshop' })],
    ['Managed', row(page, 'files').getByText('Configmap')],
    ['Callbacks', page.getByRole('rowheader')],
    ['Connections', page.getByRole('heading', { name: 'build machines' })],
    ['Requests', page.getByRole('rowheader')],
    ['Nodes', page.getByRole('link', { name: 'compute-1', exact: true })],
  ];
  for (const [part, shows] of pages) {
    await open(page, part);
    await shows.first().waitFor();
    await look(page, part);
  }
  await close();
});
