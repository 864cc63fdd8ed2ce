// Leases: the calendar, a lease with its steps, and what people do with one.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { browser, faultless, open, order, timeLimit, picture, row, settled, sizes, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

const track = (page, name) =>
  page.locator('.track').filter({ has: page.getByRole('link', { name, exact: true }) });

for (const size of Object.keys(sizes)) {
  test(`the calendar and a lease, ${size}`, { timeout: timeLimit }, async () => {
    const { page, close } = await visit(chrome, { size });
    await open(page, 'Leases');
    await track(page, 'workshop').locator('.mark').getByText('active').waitFor();
    await track(page, 'workshop').getByText(/^2 hosts, \d/).waitFor();
    await track(page, 'nightly').locator('.mark').getByText('pending').waitFor();
    await track(page, 'broken').getByText('delegates again').waitFor();
    assert.equal(await track(page, 'workshop').locator('rect.good').count(), 1, 'an active lease has a bar');
    assert.equal(await track(page, 'workshop').locator('line.present').count(), 1, 'a line marks the present');
    await settled(page);
    await picture(page, `leases-${size}`);
    await faultless(page, `leases, ${size}`);
    await page.getByRole('radio', { name: '3 months' }).check();
    await picture(page, `leases-quarter-${size}`);
    await page.getByRole('radio', { name: 'Day', exact: true }).check();
    await page.getByRole('button', { name: 'Later' }).focus();
    await page.keyboard.press('Enter');
    await track(page, 'workshop').locator('line.present').waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'Now', exact: true }).click();
    await track(page, 'workshop').locator('line.present').waitFor({ state: 'attached' });
    await track(page, 'workshop').getByRole('link').click();
    await page.getByRole('heading', { level: 1, name: 'workshop' }).waitFor();
    await row(page, 'Warning').getByText('pending').waitFor();
    await page.getByText('not known yet').waitFor();
    await settled(page);
    await picture(page, `lease-${size}`);
    await faultless(page, `lease, ${size}`);
    await page.getByRole('link', { name: 'Leases', exact: true }).last().click();
    await page.getByRole('radio', { name: 'Over' }).check();
    await track(page, 'past').locator('.mark').getByText('ended').waitFor();
    await page.getByRole('link', { name: 'New lease' }).click();
    await page.getByRole('heading', { level: 1, name: 'New lease' }).waitFor();
    await settled(page);
    await picture(page, `lease-form-${size}`);
    await faultless(page, `lease form, ${size}`);
    await close();
  });
}

test('an instance is leased, extended and given back', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [400, 422] });
  await order(page, { name: 'leased' });
  await row(page, 'leased').getByText('active').first().waitFor({ timeout: timeLimit });
  await open(page, 'Leases');
  await page.getByRole('link', { name: 'New lease' }).click();
  await page.getByRole('radio', { name: 'Instances' }).check();
  await page.getByRole('checkbox', { name: /^leased/ }).check();
  await page.getByRole('button', { name: 'Reserve' }).click();
  await page.locator('[aria-invalid]').first().waitFor(); // it has no name
  await page.getByLabel('Name').fill('<b>tomorrow</b>');
  const at = (hours) => new Date(Date.now() + hours * 3600_000).toISOString().slice(0, 16);
  await page.getByLabel(/^Start/).fill(at(24));
  await page.getByLabel(/^End/).fill(at(20));
  await page.getByRole('button', { name: 'Reserve' }).click();
  await page.getByLabel(/^End/).and(page.locator('[aria-invalid]')).waitFor(); // it ends before it begins
  await page.getByLabel(/^End/).fill(at(32));
  await page.getByLabel('Warning').selectOption('PT1H');
  await page.getByRole('button', { name: 'Reserve' }).click();
  await page.getByRole('heading', { level: 1, name: '<b>tomorrow</b>' }).waitFor();
  await row(page, 'Start').getByText('pending').waitFor();
  await page.getByRole('button', { name: 'New end' }).click();
  const end = at(40);
  await page.getByRole('dialog').getByLabel('New end, in UTC').fill(end);
  await page.getByRole('dialog').getByRole('button', { name: 'Change' }).click();
  await row(page, 'End').getByText(`${end.slice(11)} UTC`).waitFor();
  const extend = async (hours) => {
    await page.getByRole('dialog').getByLabel('New end, in UTC').fill(at(hours));
    await page.getByRole('dialog').getByRole('button', { name: 'Change' }).click();
    await page.locator('#toast', { hasText: '<b>tomorrow</b> has another end.' }).waitFor();
  };
  await open(page, 'Servers');
  await row(page, 'leased').getByRole('link').click();
  await page.getByRole('link', { name: '<b>tomorrow</b>' }).waitFor();
  await page.getByText(/begins in \d+ h/).waitFor();
  await settled(page);
  await faultless(page, 'server with a lease');
  await page.getByRole('button', { name: 'New end <b>tomorrow</b>' }).click();
  await extend(44);
  await page.getByRole('button', { name: 'Cancel <b>tomorrow</b>' }).waitFor();
  await open(page, 'Connections'); // what the lease acts through is listed on request only, and cannot be revoked
  const delegated = page.getByRole('heading', { level: 2, name: 'lease <b>tomorrow</b>' });
  await page.getByRole('heading', { level: 2, name: 'build machines' }).waitFor();
  assert.equal(await delegated.count(), 0, 'connections of leases are among those of people');
  await page.getByRole('radio', { name: 'Of leases' }).check();
  await delegated.waitFor();
  await page.getByRole('heading', { level: 2, name: 'build machines' }).waitFor({ state: 'detached' });
  assert.equal(await page.getByRole('button', { name: /^Revoke/ }).count(), 0, 'it ends with its lease');
  await page.getByRole('radio', { name: 'Of declared resources' }).check();
  await page.getByText('Nothing is delegated').waitFor();
  await open(page, 'Leases');
  const calendar = track(page, '<b>tomorrow</b>');
  await calendar.getByRole('button', { name: 'New end' }).click();
  await extend(48);
  await calendar.getByRole('button', { name: 'Cancel' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel the lease' }).click();
  await calendar.waitFor({ state: 'detached' }).catch(async (late) => {
    throw new Error(`it is not cancelled yet: ${await calendar.innerText()}`, { cause: late });
  });
  await close();
});

test('a server shows how long its lease lasts, and ends it', { timeout: 3 * timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await order(page, { name: 'brief' });
  await row(page, 'brief').getByText('active').first().waitFor({ timeout: timeLimit });
  await open(page, 'Leases');
  await page.getByRole('link', { name: 'New lease' }).click();
  await page.getByRole('radio', { name: 'Instances' }).check();
  await page.getByRole('checkbox', { name: /^brief/ }).check();
  await page.getByLabel('Name').fill('night shift');
  await page.getByLabel(/^End/).fill(new Date(Date.now() + 8 * 3600_000).toISOString().slice(0, 16));
  await page.getByRole('button', { name: 'Reserve' }).click();
  await page.getByRole('heading', { level: 1, name: 'night shift' }).waitFor();
  await row(page, 'End').first().waitFor();
  assert.equal(await row(page, 'Warning').count(), 0, 'the form says None, and the lease has no warning');
  await open(page, 'Servers');
  await row(page, 'brief').getByRole('link').click();
  await page.getByText(/\d+ h left/).waitFor({ timeout: timeLimit });
  await page.getByRole('button', { name: 'End now night shift' }).click();
  await page.getByRole('dialog').getByText('keep their disks.', { exact: false }).waitFor();
  assert.equal(await page.getByRole('dialog').getByText('hosts').count(), 0, 'it has none');
  await page.getByRole('dialog').getByRole('button', { name: 'End the lease' }).click();
  await page.locator('#toast', { hasText: 'night shift is ' }).waitFor();
  // it has ended
  await page.getByRole('link', { name: 'night shift' }).waitFor({ state: 'detached', timeout: timeLimit });
  await page.getByText('Nova: SHELVED_OFFLOADED').waitFor({ timeout: timeLimit });
  await page.getByRole('button', { name: 'Unshelve brief' }).click();
  await page.getByRole('button', { name: 'Shelve brief', exact: true }).click({ timeout: timeLimit });
  await page.locator('#toast', { hasText: 'shelve is under way' }).waitFor();
  await page.getByRole('button', { name: 'Unshelve brief' }).click({ timeout: timeLimit });
  await page.getByRole('button', { name: 'Snapshot brief' }).click({ timeout: timeLimit });
  await page.getByLabel('Name of the image').fill('of the night');
  await faultless(page, 'snapshot');
  await page.getByRole('button', { name: 'Make an image' }).click();
  await page.locator('#toast', { hasText: 'is being made' }).waitFor();
  await close();
});

test('a volume is made for one of two instances, and deleted at the end', { timeout: 3 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [400, 422] });
  await order(page, { name: 'disks', count: '2' });
  for (const name of ['disks-1', 'disks-2'])
    await row(page, name).getByText('active').first().waitFor({ timeout: timeLimit });
  await open(page, 'Leases');
  await page.getByRole('link', { name: 'New lease' }).click();
  await page.getByRole('radio', { name: 'Instances' }).check();
  await page.getByLabel('Name').fill('with a disk');
  await page.getByRole('checkbox', { name: /^disks-1/ }).check();
  await page.getByRole('button', { name: 'Add a volume' }).click();
  const instance = page.getByLabel('Instance', { exact: true });
  await page.getByLabel('Volume', { exact: true }).and(page.locator(':focus')).waitFor();
  assert.ok(await instance.isHidden(), 'one instance is no choice');
  await page.getByRole('checkbox', { name: /^disks-2/ }).check();
  await instance.selectOption('disks-2');
  await page.getByLabel('At the end of the lease').selectOption('delete');
  await page.getByLabel('Size in GB').fill('0');
  await picture(page, 'lease-form-volume');
  await faultless(page, 'lease form with a volume');
  await page.getByRole('button', { name: 'Reserve' }).click();
  await page.getByLabel('Size in GB').and(page.locator('[aria-invalid]')).waitFor();
  await page.getByLabel('Size in GB').fill('1');
  await page.getByRole('button', { name: 'Add a volume' }).click();
  await page.getByRole('button', { name: 'Remove the volume' }).nth(1).click();
  const sent = page.waitForRequest((r) => r.method() === 'POST' && r.url().endsWith('/v1/leases'));
  await page.getByRole('button', { name: 'Reserve' }).click();
  const [first, second, volume, ...more] = (await sent).postDataJSON().reservations;
  assert.deepEqual([first.type, second.type, more], ['instance', 'instance', []]);
  assert.deepEqual(volume, { type: 'volume', size_gb: 1, on_end: 'delete', instance_id: volume.instance_id });
  assert.ok([first, second].some((r) => r.instance_id === volume.instance_id));
  await page.getByText('2 instances, 1 volume').waitFor();
  const reserved = page.getByRole('row').filter({ hasText: /Volume [0-9a-f-]{36}, at the end deleted/ });
  await reserved.getByText('active').waitFor({ timeout: timeLimit });
  await settled(page);
  await picture(page, 'lease-volume');
  await faultless(page, 'lease with a volume');
  await page.getByRole('button', { name: 'Other end of the volume' }).click();
  await page.getByRole('dialog').getByLabel('At the end of the lease').selectOption('keep');
  await page.getByRole('dialog').getByRole('button', { name: 'Change' }).click();
  await page.getByRole('row').filter({ hasText: /Volume [0-9a-f-]{36}, at the end kept/ }).waitFor();
  await page.getByRole('button', { name: 'Other end of the volume' }).click();
  await page.getByRole('dialog').getByLabel('At the end of the lease').selectOption('delete');
  await page.getByRole('dialog').getByRole('button', { name: 'Change' }).click();
  await reserved.waitFor();
  await page.getByRole('button', { name: 'End now with a disk' }).click();
  await page.getByRole('dialog').getByText('Its volumes are detached: deleted.', { exact: false }).waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'End the lease' }).click();
  await reserved.getByText('ended').waitFor({ timeout: timeLimit });
  await close();
});

test('a lease that ends badly gets another end', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Leases');
  await track(page, 'stuck').getByText('cannot be ended yet').waitFor();
  await track(page, 'stuck').getByRole('link').click();
  await page.getByRole('button', { name: 'Retry stuck' }).waitFor();
  assert.equal(await page.getByRole('button', { name: 'Release stuck' }).count(), 0, 'only admins release');
  await page.getByRole('button', { name: 'Other end stuck' }).click();
  const dialog = page.getByRole('dialog');
  assert.equal(await dialog.getByRole('option', { name: 'Stop the servers' }).count(), 0, 'it has hosts');
  await dialog.getByLabel('At the end').selectOption('delete');
  await faultless(page, 'another end');
  await dialog.getByRole('button', { name: 'Change' }).click();
  await page.locator('#toast', { hasText: 'stuck ends differently.' }).waitFor();
  await page.getByText('its servers are deleted').waitFor();
  await close();
});

test('hosts: why none can be had, and no calendar of hosts for members', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [400, 403, 422] });
  await open(page, 'Leases');
  await settled(page);
  assert.equal(await page.getByRole('link', { name: 'Hosts' }).count(), 0, 'only admins get the calendar of hosts');
  await page.getByRole('link', { name: 'New lease' }).click();
  await page.getByLabel('Name').fill('too many');
  await page.getByLabel('Hosts, at least').fill('900');
  await page.getByRole('button', { name: 'When are they free?' }).click();
  await page.locator('.report').getByText('host').or(page.locator('.error', { hasText: 'host' })).first().waitFor();
  await page.getByRole('button', { name: 'Reserve' }).click();
  await page.locator('.error', { hasText: 'host' }).first().waitFor();
  await close();
});
