// Nodes, for an admin: how full they are, a drain, and what a drain would do.
import { after, before, test } from 'node:test';
import { browser, faultless, open, patience, picture, settled, sizes, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

const card = (page, name) =>
  page.locator('.card').filter({ has: page.getByRole('link', { name, exact: true }) });

for (const size of Object.keys(sizes)) {
  test(`nodes and one of them, ${size}`, { timeout: 2 * patience }, async () => {
    const { page, close } = await visit(chrome, { size });
    await open(page, 'Nodes');
    await card(page, 'compute-1').getByText('vCPUs').waitFor();
    await card(page, 'compute-1').locator('.mark').getByText('up').waitFor({ timeout: patience });
    await settled(page);
    await picture(page, `nodes-${size}`);
    await faultless(page, `nodes, ${size}`);
    await page.getByRole('button', { name: 'Drain compute-1' }).click();
    await page.getByRole('dialog').getByText('Reading…').waitFor({ state: 'detached' });
    await settled(page);
    await picture(page, `nodes-plan-${size}`);
    await faultless(page, `plan of a drain, ${size}`);
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
    await card(page, 'compute-1').getByRole('link').click();
    await page.getByRole('heading', { level: 1, name: 'compute-1' }).waitFor();
    await page.getByText('drain done').waitFor();
    await page.getByText('is paused').waitFor(); // why a server stayed
    await settled(page);
    await picture(page, `node-${size}`);
    await faultless(page, `node, ${size}`);
    await open(page, 'Leases');
    await page.getByRole('link', { name: 'Hosts' }).click();
    await page.getByRole('heading', { level: 1, name: 'Hosts' }).waitFor();
    await page.getByRole('rowheader', { name: 'compute-1' }).waitFor();
    await settled(page);
    await picture(page, `hosts-${size}`);
    await faultless(page, `hosts, ${size}`);
    await close();
  });
}
