// Every view in light, dark and on a phone: checked by axe-core's rules, and kept as a screenshot.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { browser, faultless, open, order, timeLimit, picture, row, settled, signIn, sizes, visit } from './harness.mjs';

let chrome;
before(
  async () => {
    chrome = await browser();
    const { page, close } = await visit(chrome); // something to look at
    await order(page, { name: 'batch', count: '3' });
    for (const n of [1, 2, 3])
      await row(page, `batch-${n}`).getByText('active').first().waitFor({ timeout: timeLimit });
    await open(page, 'Servers');
    await page.getByRole('button', { name: 'Stop batch-2' }).click();
    await row(page, 'batch-2').getByText('stopped').waitFor({ timeout: timeLimit });
    await close();
  },
  { timeout: 3 * timeLimit },
);
after(() => chrome?.close());

for (const size of Object.keys(sizes)) {
  test(`every view, ${size}`, { timeout: 3 * timeLimit }, async () => {
    const { page, close } = await visit(chrome, { size, signedIn: false, expected: [400] });
    const look = async (name) => {
      await settled(page);
      assert.equal(await page.getByRole('heading', { level: 1 }).count(), 1, `${name} has one h1`);
      await picture(page, `${name}-${size}`);
      await faultless(page, `${name}, ${size}`);
    };
    await look('sign-in');
    await signIn(page);
    await page.locator('.hour').first().waitFor();
    await look('overview');
    await open(page, 'Servers');
    await row(page, 'batch-1').waitFor();
    await look('servers');
    await page.getByRole('button', { name: 'Delete batch-1' }).click();
    await look('confirm');
    await page.keyboard.press('Escape');
    await row(page, 'batch-2').getByRole('link').click();
    await page.getByText('m1.tiny: 1 vCPU').waitFor();
    await page.getByRole('heading', { name: 'History' }).waitFor();
    await look('server');
    await open(page, 'Launch');
    await page.getByRole('option', { name: /m1\.tiny/ }).waitFor({ state: 'attached' });
    await page.getByLabel('Name').fill('web');
    await page.getByLabel('Flavor').selectOption('m1.tiny');
    await page.getByLabel(/^How many/).fill('101');
    await page.locator('[aria-invalid]').waitFor();
    await page.getByText('More', { exact: true }).click();
    await look('launch');
    await open(page, 'Orders');
    await page.getByRole('link', { name: 'batch-1 and 2 more' }).first().waitFor();
    await look('orders');
    await page.getByRole('link', { name: 'batch-1 and 2 more' }).first().click();
    await row(page, 'batch-3').waitFor();
    await look('order');
    await open(page, 'Leases');
    await page.getByRole('link', { name: 'workshop' }).waitFor();
    await look('leases');
    await open(page, 'Callbacks');
    await page.getByRole('rowheader').first().waitFor();
    await look('callbacks');
    await page.getByRole('rowheader').first().getByRole('link').click();
    await page.getByRole('heading', { name: 'Deliveries' }).waitFor();
    await page.getByRole('rowheader').first().waitFor();
    await look('callback');
    await open(page, 'Connections');
    await page.getByRole('heading', { name: 'build machines' }).waitFor();
    await look('connections');
    await open(page, 'Requests');
    await page.getByRole('rowheader').first().waitFor();
    await look('requests');
    await close();
  });
}
