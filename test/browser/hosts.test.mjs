// What takes whole hosts, on two that no other test has meanwhile: compute-3 and compute-4, alone in their pool. A
// reservation of one, cordons and a drain.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { browser, faultless, open, timeLimit, settled, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

const card = (page, name) => page.locator('.card').filter({ has: page.getByRole('link', { name, exact: true }) });
const toast = (page, text) => page.locator('#toast', { hasText: text }).waitFor();

const row = 'a free period fills in the lease, and the calendar has a row for each host';
test(row, { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  const at = (hours) => new Date(Date.now() + hours * 3600_000).toISOString().slice(0, 16);
  const tomorrow = at(24), end = at(27);
  await open(page, 'Leases');
  await page.getByRole('link', { name: 'New lease' }).click();
  await page.getByLabel('Name').fill('course');
  await page.getByLabel('Hosts, at least').fill('2');
  await page.getByLabel(/^Start/).fill(tomorrow);
  await page.getByLabel(/^End/).fill(end);
  await page.getByRole('button', { name: 'When are they free?' }).click();
  const take = page.getByRole('button', { name: /^Take its start: / }).first();
  await take.waitFor();
  await faultless(page, 'free periods');
  await page.getByLabel(/^Start/).fill('');
  await take.click();
  await page.locator('#toast', { hasText: 'The times are filled in.' }).waitFor();
  assert.equal(await page.getByLabel(/^Start/).inputValue(), tomorrow);
  assert.equal(await page.getByLabel(/^End/).inputValue(), end);
  await page.getByRole('button', { name: 'Reserve' }).click();
  await page.getByRole('heading', { level: 1, name: 'course' }).waitFor();
  await page.getByText('2 hosts').first().waitFor();
  await page.getByRole('link', { name: 'Leases', exact: true }).last().click();
  await page.getByRole('link', { name: 'Hosts' }).click();
  const calendar = page.getByRole('region', { name: 'Reservations of hosts' });
  for (const host of ['compute-3', 'compute-4']) {
    const track = calendar.locator('.track').filter({ hasText: host });
    await track.getByText(/^project .*, lease .*: /).waitFor();
    assert.equal(await track.locator('rect').count(), 1, `${host} has a bar`);
  }
  assert.equal(await calendar.getByText('compute-1').count(), 0, 'a host that cannot be reserved has no row');
  await settled(page);
  await faultless(page, 'hosts with a reservation');
  await open(page, 'Leases');
  await page.getByRole('link', { name: 'course' }).click();
  await page.getByRole('button', { name: 'Release course' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Release the lease' }).click();
  await toast(page, 'course is cancelled.');
  await page.getByRole('heading', { level: 1 }).getByText('course').waitFor();
  await page.getByRole('button', { name: 'Release course' }).waitFor({ state: 'detached' });
  await close();
});

test('the last host of a zone is cordoned and drained only by force', { timeout: 4 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [409] });
  const dialog = page.getByRole('dialog');
  const last = dialog.getByRole('checkbox', { name: /^Even if it is the last host/ });
  await open(page, 'Nodes');
  await page.getByRole('button', { name: 'Cordon compute-3', exact: true }).click();
  await settled(page);
  await faultless(page, 'cordon');
  await dialog.getByRole('button', { name: 'Cordon' }).click();
  await toast(page, 'compute-3 is cordoned.');
  await card(page, 'compute-3').getByText('cordoned').waitFor();

  await page.getByRole('button', { name: 'Cordon compute-4', exact: true }).click();
  await dialog.getByRole('button', { name: 'Cordon' }).click();
  await dialog.getByText('no other reservable host of zone').waitFor();
  await last.check();
  await dialog.getByRole('button', { name: 'Cordon' }).click();
  await toast(page, 'compute-4 is cordoned.');
  await page.getByRole('button', { name: 'Uncordon compute-4', exact: true }).click();
  await dialog.getByRole('button', { name: 'Uncordon' }).click();
  await toast(page, 'compute-4 takes servers again.');

  await page.getByRole('button', { name: 'Drain compute-4', exact: true }).click();
  await dialog.getByText('It has no servers.').waitFor(); // the plan is shown all the same
  await dialog.getByRole('button', { name: 'Drain' }).click();
  await dialog.getByText('no other reservable host of zone').waitFor();
  await last.check();
  await faultless(page, 'drain of the last host');
  await dialog.getByRole('button', { name: 'Drain' }).click();
  await toast(page, 'compute-4 is drained.');
  await card(page, 'compute-4').getByRole('link').click();
  await page.getByText('drain done').waitFor({ timeout: timeLimit });
  assert.equal(await page.getByRole('button', { name: 'Cordon compute-4', exact: true }).count(), 0, 'it is cordoned');
  await close();
});
