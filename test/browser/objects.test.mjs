// Callbacks, connections and the request log on the page.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { account, base, browser, open, order, timeLimit, receiver, row, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

test('callbacks: made, tried, suspended, resumed, redelivered and deleted', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [400] });
  await open(page, 'Callbacks');
  await page.getByText('No callbacks yet').waitFor();
  await page.getByRole('button', { name: 'New callback' }).click();
  const form = page.getByRole('dialog', { name: 'New callback' });
  await form.getByLabel('URL').fill('ftp://nowhere');
  await form.getByRole('button', { name: 'Create' }).click();
  await form.getByRole('alert').filter({ hasText: /https/ }).waitFor();
  await form.getByLabel('URL').fill(receiver);
  await form.getByRole('checkbox', { name: 'instance.state' }).check();
  await form.getByRole('button', { name: 'Create' }).click();
  const secret = page.getByRole('dialog', { name: 'The secret of the callback' });
  assert.match(await secret.getByRole('textbox').inputValue(), /^whsec_/);
  await secret.getByRole('button', { name: 'I have it' }).click();
  const status = page.locator('.facts .mark');
  await status.getByText('verified').waitFor({ timeout: timeLimit });
  await page.getByRole('button', { name: 'Send a test' }).click();
  const delivery = row(page, 'callback.test').first();
  await delivery.getByText('delivered').waitFor({ timeout: timeLimit });
  await delivery.getByText('204').waitFor();
  await delivery.getByRole('button', { name: /^Event/ }).click();
  await page.getByRole('dialog').getByText('"type": "cloudfn.callback.test.v1"').waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Close' }).click();
  await delivery.getByRole('button', { name: /^Redeliver/ }).click();
  await row(page, 'callback.test').nth(1).getByText('delivered').waitFor({ timeout: timeLimit });
  await page.getByRole('button', { name: 'Suspend' }).click();
  await status.getByText('suspended').waitFor();
  await page.getByRole('button', { name: 'Resume' }).click();
  await status.getByText('verified').waitFor({ timeout: timeLimit });
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('No callbacks yet').waitFor();
  await close();
});

test('requests for connections: granted in part, and declined', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [400] });
  await open(page, 'Connections');
  const waiting = page.getByRole('region', { name: 'Requests for connections' });
  const nightly = waiting.locator('.card', { has: page.getByRole('heading', { name: '<b>nightly</b>' }) });
  await nightly.getByText('<i>we build</i> at night').waitFor();
  await nightly.getByText('48h from when you grant it').waitFor();
  await nightly.getByRole('button', { name: 'Grant <b>nightly</b>' }).click();
  const form = page.getByRole('dialog');
  await form.getByLabel('deallocate').uncheck();
  const servers = form.getByLabel('Servers at most (3 requested)');
  await servers.fill('4');
  await form.getByRole('button', { name: 'Grant' }).click();
  await form.getByText('quota.instances').waitFor();
  await servers.fill('1');
  await form.getByRole('button', { name: 'Grant' }).click();
  await nightly.waitFor({ state: 'detached', timeout: timeLimit });
  const granted = page.locator('.card', { has: page.getByRole('heading', { level: 2, name: '<b>nightly</b>' }) });
  await granted.getByText('0 of 1').waitFor();
  assert.deepEqual(await granted.getByRole('list', { name: 'It permits' }).getByRole('listitem').allTextContents(), [
    'allocate',
  ]);
  await waiting.getByRole('button', { name: 'Decline weekly' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Decline' }).click();
  await waiting.waitFor({ state: 'hidden' });
  await close();
});

test('connections: what they permit, how far they are used, and revoked', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Connections');
  const card = page.locator('.card', { has: page.getByRole('heading', { name: 'build machines' }) });
  const permits = card.getByRole('list', { name: 'It permits' }).getByRole('listitem');
  await permits.first().waitFor();
  assert.deepEqual(await permits.allTextContents(), ['allocate', 'start', 'stop']);
  await card.getByText('0 of 3').waitFor();
  await card.getByText(new RegExp(`^[0-9a-f]{32} \\(${account.second}\\)$`)).waitFor();
  await card.getByText(/^flavors \S+$/).waitFor();
  await card.getByText(/UTC \(in \d+ [hd]\)/).waitFor();
  await card.getByRole('button', { name: 'Check build machines' }).click();
  await page.getByText(/^build machines works\. Its roles: (.*, )?member/).waitFor({ timeout: timeLimit });
  await card.getByRole('button', { name: 'Suspend build machines' }).click();
  await page.getByRole('dialog', { name: 'Suspend build machines?' }).getByRole('button', { name: 'Suspend' }).click();
  await card.getByText(/ago: nothing is done through it$/).waitFor();
  await card.getByRole('button', { name: 'Resume build machines' }).click();
  await card.getByRole('button', { name: 'Suspend build machines' }).waitFor();
  await card.getByRole('button', { name: 'New end of build machines' }).click();
  const end = new Date(Date.now() + 30 * 3600_000).toISOString().slice(0, 16);
  await page.getByLabel('New end, in UTC').fill(end);
  await page.getByRole('dialog').getByRole('button', { name: 'Change' }).click();
  await card.getByText(`${end.slice(11)} UTC (in`).waitFor();
  await card.getByRole('button', { name: 'Revoke build machines' }).click();
  await page.getByRole('dialog', { name: 'Revoke build machines?' }).getByRole('button', { name: 'Revoke' }).click();
  await card.waitFor({ state: 'detached' });
  await page.getByRole('radio', { name: 'That I may use' }).check();
  await page.getByText('build machines').waitFor({ state: 'detached' });
  await close();
});

test('the request log, and its errors only', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [404] });
  await page.goto(`${base}/console/#/orders/00000000-0000-4000-8000-000000000000`);
  await page.getByText('There is no such order').waitFor();
  await open(page, 'Requests');
  await page.getByRole('row').filter({ hasText: '/v1/connections' }).first().waitFor();
  assert.equal(await page.getByRole('row').filter({ hasText: 'GET' }).count(), 0, 'changes come first');
  await page.getByLabel('Which').selectOption('all');
  await page.getByRole('row').filter({ hasText: '/v1/stats' }).first().waitFor();
  await page.getByLabel('Which').selectOption('errors');
  const first = page.getByRole('row').filter({ hasText: '/v1/launch/00000000-0000-4000-8000-000000000000' }).first();
  await first.getByText('not_found').waitFor();
  await page.locator('td[data-label=Status]', { hasText: /^200$/ }).first().waitFor({ state: 'detached' });
  await page.getByLabel('Since').selectOption('15');
  await first.waitFor();
  await page.reload();
  await first.waitFor();
  assert.equal(await page.getByLabel('Since').inputValue(), '15', 'the address has the filters');
  assert.equal(await page.getByLabel('Which').inputValue(), 'errors');
  const [file] = await Promise.all([
    page.waitForEvent('download'),
    page.getByRole('button', { name: 'Export CSV' }).click(),
  ]);
  assert.equal(file.suggestedFilename(), 'requests.csv');
  const lines = readFileSync(await file.path(), 'utf8').split('\r\n');
  assert.match(lines[0], /^id,at,function,.*,user_name,.*,connection_id,acted_in,count$/);
  assert.ok(
    lines.some((line) => line.includes('/v1/launch/00000000-0000-4000-8000-000000000000')),
    'what the table shows is in the file',
  );
  await page.getByLabel('Whose').selectOption('any');
  await page.getByText('No such requests').waitFor();
  await page.getByLabel('Whose').selectOption('');
  await first.waitFor();
  await close();
});
