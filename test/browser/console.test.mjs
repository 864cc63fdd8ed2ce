// What people do with the console, against the real daemon and the real sandbox cloud.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { account, base, browser, open, order, passwordField, timeLimit, row, userField, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

const active = (page, name) =>
  row(page, name).getByText('Active', { exact: false }).first().waitFor({ timeout: timeLimit });

test(
  'a wrong password is said in place, and a project is chosen from those that there are',
  { timeout: timeLimit },
  async () => {
    const { page, close } = await visit(chrome, { signedIn: false, expected: [400] });
    await userField(page).fill(account.user);
    await page.getByRole('button', { name: 'Sign in' }).click();
    assert.equal(await passwordField(page).getAttribute('aria-invalid'), 'true');
    await passwordField(page).fill('not the password');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').filter({ hasText: 'Keystone does not accept this user and password.' }).waitFor();
    assert.equal(await userField(page).inputValue(), account.user, 'what was typed in stays');
    await passwordField(page).fill(account.password);
    await page.keyboard.press('Enter');
    const choices = page.getByRole('group', { name: 'Which project?' }).getByRole('button');
    await choices.first().waitFor();
    assert.deepEqual((await choices.allTextContents()).sort(), [account.project, account.second].sort());
    await choices.filter({ hasText: account.second }).click();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    await page.locator('#who').getByText(account.second).waitFor();
    await page.getByText(/^No servers at \d|^Nothing was counted yet/).waitFor();
    await page.getByRole('main').getByRole('link', { name: 'Servers', exact: true }).waitFor(); // those of now
    await open(page, 'Servers');
    await page.getByText('No servers yet').waitFor();
    await open(page, 'Orders');
    await page.getByText('No orders yet').waitFor();
    await close();
  },
);

test('who has several projects switches between them, in all tabs', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  const tab = await page.context().newPage();
  await tab.goto(`${base}/console/#/orders`);
  await tab.getByRole('heading', { name: 'Orders' }).waitFor();
  await open(page, 'Servers');
  const shown = (of, project) => of.locator('#who b').filter({ hasText: project }).waitFor();
  await page.getByTitle('Your session').click();
  await page.getByRole('group', { name: 'Switch to another project' }).getByText(account.second).click();
  await shown(page, account.second);
  await page.getByText('No servers yet').waitFor();
  await open(tab, 'Launch'); // which the tab requests for the first project
  await tab.getByRole('button', { name: `Go on in ${account.second}` }).waitFor();
  await tab.getByRole('button', { name: `Back to ${account.project}` }).click();
  await shown(tab, account.project);
  await tab.getByRole('heading', { name: 'Launch' }).waitFor();
  await page.getByRole('button', { name: `Go on in ${account.project}` }).click(); // at its next request
  await shown(page, account.project);
  await tab.close();
  await close();
});

test('what has not changed is not sent again', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Servers');
  await page.getByText('No servers yet').waitFor();
  await open(page, 'Orders');
  await page.getByText('No orders yet').waitFor();
  const again = page.waitForResponse((r) => r.url().includes('/api/v1/servers?') && r.status() === 304);
  await open(page, 'Servers');
  await again;
  await page.getByText('No servers yet').waitFor();
  await close();
});

test('the first page is small', { timeout: timeLimit }, async (t) => {
  const { page, seen, close } = await visit(chrome);
  await page.locator('.hour').first().waitFor();
  await close();
  t.diagnostic(`${seen.bytes} bytes until the overview stands, answers of the API included`);
  assert.ok(seen.bytes > 5_000 && seen.bytes < 20_000, `${seen.bytes} bytes until the overview stands`);
});

test('the chart tells each hour to the mouse and to the keyboard', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  const hours = page.locator('.hour'),
    readout = page.locator('#readout');
  await hours.nth(23).waitFor();
  assert.equal(await hours.count(), 24);
  await hours.nth(20).hover();
  await readout.getByText('3 running').waitFor();
  for (const text of ['5 in all', '2 launched', '1 uncertain', '3 ACTIVE', '2 SHUTOFF', 'counted at the hour'])
    await readout.getByText(text).waitFor();
  await page.getByRole('radio', { name: 'By status' }).check();
  assert.equal(await hours.nth(20).locator('.of.run, .of.stop').count(), 2);
  await page.getByRole('listitem').filter({ hasText: 'stopped' }).waitFor();
  assert.match(page.url(), /bars=status/);
  await page.getByRole('radio', { name: 'Running' }).check();
  await page.mouse.move(0, 0);
  await hours.nth(23).focus();
  await readout.getByText('7 running').waitFor();
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowLeft');
  await readout.getByText('rebuilt from history').waitFor();
  assert.match(
    await page.evaluate(() => document.activeElement.getAttribute('aria-label')),
    /UTC: 4 running of 4 \(4 ACTIVE\), rebuilt from history$/,
  );
  for (let i = 0; i < 3; i++) await page.keyboard.press('ArrowLeft');
  await readout.getByText('Not known').waitFor();
  await page.keyboard.press('Home');
  assert.equal(await hours.first().getAttribute('tabindex'), '0');
  await page.getByText('The same as a table').click();
  assert.equal(await page.getByRole('row').filter({ hasText: 'missing' }).count(), 3);
  const [file] = await Promise.all([
    page.waitForEvent('download'),
    page.getByRole('button', { name: 'Save as CSV' }).click(),
  ]);
  const lines = readFileSync(await file.path(), 'utf8').trimEnd().split('\r\n');
  assert.equal(lines.length, 25);
  assert.match(lines.at(-1), /^\d{4}-\d\d-\d\dT\d\d:00:00Z,7,8,0,0,sampled$/);
  assert.match(lines.at(-9), /Z,,,,\d*,missing$/);
  await page.getByRole('radio', { name: '7 days' }).check();
  await page.locator('.hour').nth(167).waitFor();
  await page.locator('.gauge').getByText('Servers').waitFor();
  await close();
});

test('what is wrong with an order is said beside its field, before it is sent', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [400] });
  await open(page, 'Launch');
  await page.getByRole('button', { name: 'Launch' }).click();
  assert.equal(await page.getByLabel('Name').getAttribute('aria-invalid'), 'true');
  assert.equal(await page.evaluate(() => document.activeElement.labels[0].textContent), 'Name');
  await page.getByLabel('Name').fill('many');
  await page.getByRole('option', { name: /m1\.tiny/ }).waitFor({ state: 'attached' });
  await page.getByLabel('Flavor').selectOption('m1.tiny');
  await page.getByText('Ready: one server can be launched.').waitFor();
  await page.getByLabel(/^How many/).fill('101');
  const count = page.getByLabel(/^How many/);
  await page.waitForFunction((e) => e.getAttribute('aria-invalid') === 'true', await count.elementHandle());
  const said = await page
    .locator(`#${(await count.getAttribute('aria-describedby')).split(' ').join(', #')}`)
    .allTextContents();
  assert.match(said.join(' '), /100/);
  await page.reload();
  await page.getByRole('heading', { level: 1, name: 'Launch' }).waitFor();
  await page.waitForFunction(() => document.querySelector('form input').value === 'many');
  await page.getByRole('button', { name: 'Start over' }).click();
  await page.waitForFunction(() => document.querySelector('form input').value === '');
  await close();
});

test(
  'an order that no one answered stays one order, and a name is text whatever it is',
  { timeout: 3 * timeLimit },
  async () => {
    const name = '<img src=x onerror=document.title="owned">';
    const { page, close } = await visit(chrome, { expected: [0] });
    const bodies = [];
    let broken = 0;
    await page.route('**/console/api/v1/launch', async (route) => {
      if (route.request().method() !== 'POST') return route.continue();
      bodies.push(route.request().postDataJSON());
      if (broken++) return route.continue();
      await route.fetch(); // the order is placed, and its answer gets lost
      return route.abort('connectionreset');
    });
    await order(page, { name });
    await page.getByText('Launch again: it stays one order.').waitFor({ timeout: timeLimit });
    await page.getByRole('button', { name: 'Launch' }).dblclick();
    await page.getByRole('heading', { level: 1, name }).waitFor({ timeout: timeLimit });
    assert.equal(bodies.length, 2);
    assert.deepEqual(bodies[0], bodies[1]);
    await open(page, 'Servers');
    await active(page, name);
    assert.equal(await row(page, name).count(), 1, 'there is one server');
    assert.equal(await page.locator('main img').count(), 0);
    assert.notEqual(await page.title(), 'owned');
    await open(page, 'Orders');
    await page.getByRole('link', { name }).waitFor();
    await close();
  },
);

test('a generated key is shown once and can be saved', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await order(page, {
    name: 'keyed',
    count: '2',
    more: () => page.getByLabel('SSH key').selectOption({ label: 'Make a new one' }),
  });
  const shown = page.getByRole('dialog', { name: 'The private key' });
  await shown.waitFor({ timeout: timeLimit });
  const key = await shown.getByRole('textbox').inputValue();
  assert.match(key, /BEGIN OPENSSH PRIVATE KEY/);
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    shown.getByRole('link', { name: 'Download' }).click(),
  ]);
  const saved = await (await download.createReadStream()).toArray();
  assert.equal(Buffer.concat(saved).toString(), key);
  await shown.getByRole('button', { name: 'I have it' }).click();
  await row(page, 'keyed-2').waitFor();
  assert.equal((await page.content()).includes('PRIVATE KEY'), false);
  await page.reload();
  await row(page, 'keyed-1').waitFor();
  assert.equal(await page.getByRole('dialog').count(), 0);
  await active(page, 'keyed-1');
  await close();
});

test('a generated key whose answer got lost is said to be lost', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [0] });
  let broken = 0;
  await page.route('**/console/api/v1/launch', async (route) => {
    if (route.request().method() !== 'POST' || broken++) return route.continue();
    await route.fetch();
    return route.abort('connectionreset');
  });
  await order(page, {
    name: 'keyless',
    more: () => page.getByLabel('SSH key').selectOption({ label: 'Make a new one' }),
  });
  await page.getByText('Launch again: it stays one order.').waitFor({ timeout: timeLimit });
  await page.getByRole('button', { name: 'Launch' }).click();
  await page.getByRole('heading', { level: 1, name: 'keyless' }).waitFor({ timeout: timeLimit });
  await page.getByRole('alert').filter({ hasText: 'no one has the key' }).waitFor();
  await close();
});

test('a form that is changed while no one answers does not promise one order', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [0] });
  let free;
  const held = new Promise((done) => {
    free = done;
  });
  await page.route('**/console/api/v1/launch', async (route) => {
    await held;
    return route.abort('connectionreset');
  });
  await order(page, { name: 'first' });
  await page.getByLabel('Name').fill('second');
  free();
  await page.getByText('would launch another order: look at Orders first.').waitFor();
  await close();
});

test('a launch by the keyboard alone', { timeout: 2 * timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  const here = () =>
    page.evaluate(() => {
      const e = document.activeElement;
      return e.labels?.[0]?.textContent || e.textContent;
    });
  const tab = async (until) => {
    for (let i = 0; i < 40; i++) {
      await page.keyboard.press('Tab');
      if ((await here()).startsWith(until)) return;
    }
    assert.fail(`Tab does not lead to ${until}, but to ${await here()}`);
  };
  await page.reload();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.keyboard.press('Tab');
  assert.equal(await here(), 'Skip to the content');
  await tab('Launch');
  await page.keyboard.press('Enter');
  await page.getByRole('option', { name: /m1\.tiny/ }).waitFor({ state: 'attached' });
  await tab('Name');
  await page.keyboard.type('by-hand');
  await tab('Flavor');
  await page.keyboard.type('m1.tiny');
  await tab('Image');
  await tab('Launch');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: 'by-hand' }).waitFor({ timeout: timeLimit });
  assert.equal(await here(), 'by-hand', 'the focus is on the heading of what came');
  await active(page, 'by-hand');
  await close();
});
