// What people do with the console, against the real daemon and the real sandbox cloud.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { account, base, browser, open, order, passwordField, patience, receiver, row, settled, signIn, userField, visit } from './harness.mjs';

let chrome;
before(async () => { chrome = await browser(); });
after(() => chrome?.close());

const active = (page, name) => row(page, name).getByText('Active', { exact: false }).first().waitFor({ timeout: patience });
const toast = (page, text) => page.locator('#toast', { hasText: text }).waitFor();

test('a wrong password is said in place, and a project is chosen from those that there are', { timeout: patience }, async () => {
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
  await open(page, 'Servers');
  await page.getByText('No servers yet').waitFor();
  await open(page, 'Orders');
  await page.getByText('No orders yet').waitFor();
  await close();
});

test('the first page is small', { timeout: patience }, async (t) => {
  const { page, seen, close } = await visit(chrome);
  await page.locator('.hour').first().waitFor();
  await close();
  t.diagnostic(`${seen.bytes} bytes until the overview stands, answers of the API included`);
  assert.ok(seen.bytes > 20_000 && seen.bytes < 60_000, `${seen.bytes} bytes until the overview stands`);
});

test('the chart tells each hour to the mouse and to the keyboard', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome);
  const hours = page.locator('.hour'), readout = page.locator('#readout');
  await hours.nth(23).waitFor();
  assert.equal(await hours.count(), 24);
  await hours.nth(20).hover();
  await readout.getByText('3 running').waitFor();
  for (const text of ['5 in all', '1 uncertain', '3 ACTIVE', '2 SHUTOFF', 'counted at the hour']) await readout.getByText(text).waitFor();
  await page.mouse.move(0, 0);
  await hours.nth(23).focus();
  await readout.getByText('7 running').waitFor();
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowLeft');
  await readout.getByText('rebuilt from history').waitFor();
  assert.match(await page.evaluate(() => document.activeElement.getAttribute('aria-label')), /UTC: 4 running of 4 \(4 ACTIVE\), rebuilt from history$/);
  for (let i = 0; i < 3; i++) await page.keyboard.press('ArrowLeft');
  await readout.getByText('Not known').waitFor();
  await page.keyboard.press('Home');
  assert.equal(await hours.first().getAttribute('tabindex'), '0');
  await page.getByText('The same as a table').click();
  assert.equal(await page.getByRole('row').filter({ hasText: 'missing' }).count(), 3);
  await page.getByRole('radio', { name: '7 days' }).check();
  await page.locator('.hour').nth(167).waitFor();
  await page.locator('.gauge').getByText('Servers').waitFor();
  await close();
});

test('a launch by the form, seen to the end without a reload; then stop, start and delete', { timeout: 4 * patience }, async () => {
  const { page, close } = await visit(chrome);
  const loads = [];
  page.on('request', (r) => { if (r.isNavigationRequest()) loads.push(r.url()); });
  await order(page, { name: 'web' });
  await page.getByRole('heading', { level: 1, name: 'web' }).waitFor();
  await active(page, 'web');
  await open(page, 'Servers');
  await active(page, 'web');
  await row(page, 'web').getByText(/\d+\.\d+\.\d+\.\d+/).first().waitFor();
  await page.getByRole('button', { name: 'Stop web', exact: true }).click();
  await toast(page, 'web: stop is under way.');
  await row(page, 'web').getByText('stopped').waitFor({ timeout: patience });
  await page.getByRole('button', { name: 'Start web', exact: true }).click();
  await active(page, 'web');
  await page.getByLabel('Name contains').fill('nothing like this');
  await page.getByText('No server is like that').waitFor();
  await page.getByLabel('Name contains').fill('we');
  await row(page, 'web').getByRole('link').click();
  await page.getByRole('heading', { level: 1, name: 'web' }).waitFor();
  await page.getByText('m1.tiny: 1 vCPU').waitFor();
  await page.getByRole('table', { name: 'What was asked of it' }).getByText('/actions').first().waitFor();
  await open(page, 'Servers');
  await page.getByRole('button', { name: 'Delete web', exact: true }).click();
  const ask = page.getByRole('dialog', { name: 'Delete web?' });
  await page.keyboard.press('Escape');
  await ask.waitFor({ state: 'detached' });
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute('aria-label')), 'Delete web', 'the focus is back');
  await page.keyboard.press('Enter');
  await ask.getByRole('button', { name: 'Delete' }).click();
  await toast(page, 'web is being deleted.');
  await row(page, 'web').waitFor({ state: 'detached', timeout: patience });
  assert.deepEqual(loads, []);
  await close();
});

test('what is wrong with an order is said beside its field, before it is sent', { timeout: patience }, async () => {
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
  const said = await page.locator(`#${(await count.getAttribute('aria-describedby')).split(' ').join(', #')}`).allTextContents();
  assert.match(said.join(' '), /100/);
  await page.reload();
  await page.getByRole('heading', { level: 1, name: 'Launch' }).waitFor();
  await page.waitForFunction(() => document.querySelector('form input').value === 'many');
  await page.getByRole('button', { name: 'Start over' }).click();
  await page.waitForFunction(() => document.querySelector('form input').value === '');
  await close();
});

test('an order that nobody answered stays one order, and a name is text whatever it is', { timeout: 3 * patience }, async () => {
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
  await page.getByText('Launch again: it stays one order.').waitFor({ timeout: patience });
  await page.getByRole('button', { name: 'Launch' }).dblclick();
  await page.getByRole('heading', { level: 1, name }).waitFor({ timeout: patience });
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
});

test('a generated key is shown once and can be saved', { timeout: 2 * patience }, async () => {
  const { page, close } = await visit(chrome);
  await order(page, { name: 'keyed', count: '2', more: () => page.getByLabel('SSH key').selectOption({ label: 'Make a new one' }) });
  const shown = page.getByRole('dialog', { name: 'The private key' });
  await shown.waitFor({ timeout: patience });
  const key = await shown.getByRole('textbox').inputValue();
  assert.match(key, /BEGIN OPENSSH PRIVATE KEY/);
  const [download] = await Promise.all([page.waitForEvent('download'), shown.getByRole('link', { name: 'Download' }).click()]);
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

test('a generated key whose answer got lost is said to be lost', { timeout: 2 * patience }, async () => {
  const { page, close } = await visit(chrome, { expected: [0] });
  let broken = 0;
  await page.route('**/console/api/v1/launch', async (route) => {
    if (route.request().method() !== 'POST' || broken++) return route.continue();
    await route.fetch();
    return route.abort('connectionreset');
  });
  await order(page, { name: 'keyless', more: () => page.getByLabel('SSH key').selectOption({ label: 'Make a new one' }) });
  await page.getByText('Launch again: it stays one order.').waitFor({ timeout: patience });
  await page.getByRole('button', { name: 'Launch' }).click();
  await page.getByRole('heading', { level: 1, name: 'keyless' }).waitFor({ timeout: patience });
  await page.getByRole('alert').filter({ hasText: 'nobody has the key' }).waitFor();
  await close();
});

test('a form that is changed while nobody answers does not promise one order', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome, { expected: [0] });
  let free;
  const held = new Promise((done) => { free = done; });
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

test('a launch by the keyboard alone', { timeout: 2 * patience }, async () => {
  const { page, close } = await visit(chrome);
  const here = () => page.evaluate(() => { const e = document.activeElement; return e.labels?.[0]?.textContent || e.textContent; });
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
  await page.getByRole('heading', { level: 1, name: 'by-hand' }).waitFor({ timeout: patience });
  assert.equal(await here(), 'by-hand', 'the focus is on the heading of what came');
  await active(page, 'by-hand');
  await close();
});

test('callbacks: made, tried, suspended, resumed, redelivered and deleted', { timeout: 2 * patience }, async () => {
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
  await status.getByText('verified').waitFor({ timeout: patience });
  await page.getByRole('button', { name: 'Send a test' }).click();
  const delivery = row(page, 'callback.test').first();
  await delivery.getByText('delivered').waitFor({ timeout: patience });
  await delivery.getByText('204').waitFor();
  await delivery.getByRole('button', { name: /^Redeliver/ }).click();
  await row(page, 'callback.test').nth(1).getByText('delivered').waitFor({ timeout: patience });
  await page.getByRole('button', { name: 'Suspend' }).click();
  await status.getByText('suspended').waitFor();
  await page.getByRole('button', { name: 'Resume' }).click();
  await status.getByText('verified').waitFor({ timeout: patience });
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('No callbacks yet').waitFor();
  await close();
});

test('requests for connections: granted in part, and declined', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome, { expected: [400] });
  await open(page, 'Connections');
  const waiting = page.getByRole('region', { name: 'Requests for connections' });
  const nightly = waiting.locator('.card', { has: page.getByRole('heading', { name: '<b>nightly</b>' }) });
  await nightly.getByText('<i>we build</i> at night').waitFor();
  await nightly.getByText('48h from when you grant it').waitFor();
  await nightly.getByRole('button', { name: 'Grant <b>nightly</b>' }).click();
  const form = page.getByRole('dialog');
  await form.getByLabel('deallocate').uncheck();
  const servers = form.getByLabel('Servers at most (3 asked for)');
  await servers.fill('4');
  await form.getByRole('button', { name: 'Grant' }).click();
  await form.getByText('quota.instances').waitFor();
  await servers.fill('1');
  await form.getByRole('button', { name: 'Grant' }).click();
  await nightly.waitFor({ state: 'detached', timeout: patience });
  const granted = page.locator('.card', { has: page.getByRole('heading', { level: 2, name: '<b>nightly</b>' }) });
  assert.deepEqual(await granted.getByRole('list', { name: 'It permits' }).getByRole('listitem').allTextContents(), ['allocate']);
  await granted.getByText('0 of 1').waitFor();
  await waiting.getByRole('button', { name: 'Decline weekly' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Decline' }).click();
  await waiting.waitFor({ state: 'hidden' });
  await close();
});

test('connections: what they permit, how far they are used, and revoked', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Connections');
  const card = page.locator('.card', { has: page.getByRole('heading', { name: 'build machines' }) });
  assert.deepEqual(await card.getByRole('list', { name: 'It permits' }).getByRole('listitem').allTextContents(), ['allocate', 'start', 'stop']);
  await card.getByText('0 of 3').waitFor();
  await card.getByText(new RegExp(`^[0-9a-f]{32} \\(${account.second}\\)$`)).waitFor();
  await card.getByText(/^flavors \S+$/).waitFor();
  await card.getByText(/UTC \(in \d+ [hd]\)/).waitFor();
  await card.getByRole('button', { name: 'Check build machines' }).click();
  await page.getByText(/^build machines works\. Its roles: (.*, )?member/).waitFor({ timeout: patience });
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

test('the request log, and its errors only', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome, { expected: [404] });
  await page.goto(`${base}/console/#/orders/00000000-0000-4000-8000-000000000000`);
  await page.getByText('There is no such order').waitFor();
  await open(page, 'Requests');
  await page.getByRole('row').filter({ hasText: '/v1/stats' }).first().waitFor();
  await page.getByLabel('Which').selectOption('errors');
  const first = page.getByRole('row').filter({ hasText: '/v1/launch/00000000-0000-4000-8000-000000000000' }).first();
  await first.getByText('not_found').waitFor();
  await page.locator('td[data-label=Status]', { hasText: /^200$/ }).first().waitFor({ state: 'detached' }); // not of the column ms
  await page.getByLabel('Since').selectOption('15');
  await first.waitFor();
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export CSV' }).click()]);
  assert.equal(file.suggestedFilename(), 'requests.csv');
  const lines = readFileSync(await file.path(), 'utf8').split('\r\n');
  assert.match(lines[0], /^id,at,function,.*,user_name,.*,connection_id,acted_in$/);
  assert.ok(lines.some((line) => line.includes('/v1/launch/00000000-0000-4000-8000-000000000000')), 'what the table shows is in the file');
  await page.getByLabel('Whose').selectOption('any');
  await page.getByText('No such requests').waitFor();
  await page.getByLabel('Whose').selectOption('');
  await first.waitFor();
  await close();
});

test('the API away is said, what was read stays, and it goes on when it is back', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome, { expected: [0, 503] });
  await open(page, 'Requests');
  await page.getByRole('row').nth(2).waitFor();
  await page.route('**/console/api/**', (route) => route.abort('connectionrefused'));
  await page.getByLabel('Which').selectOption('');
  await page.getByLabel('Since').selectOption('60');
  await page.locator('#banner').getByText(/cloudfn cannot be reached\. What you see is \d+ s old\. Trying again\./).waitFor();
  assert.ok(await page.getByRole('row').count() > 2);
  await page.unroute('**/console/api/**');
  await page.locator('#banner').waitFor({ state: 'hidden' });
  await close();
});

test('a part of a view that cannot be read is no outage', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome, { expected: [503] });
  await page.route('**/console/api/v1/resources*', (route) => route.fulfill({ status: 503, contentType: 'application/problem+json', body: '{"code": "unavailable"}' }));
  await page.reload();
  await page.locator('.hour').first().waitFor();
  await settled(page);
  assert.equal(await page.locator('#banner').isVisible(), false);
  assert.equal(await page.locator('#live').textContent(), '');
  await close();
});

test('of a server whose cell is down only what is known is shown', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome);
  const id = '4f8052c0-49f2-4b75-a508-5c4454e37731', at = new Date().toISOString();
  const server = { id, name: '', status: 'UNKNOWN', addresses: [], flavor: { name: '', vcpus: 0, ram_mb: 0, disk_gb: 0 }, image: null, zone: '', created_at: at, updated_at: at, instance: null, partial: true };
  await page.route(`**/console/api/v1/servers/${id}`, (route) => route.fulfill({ json: server }));
  await page.route('**/console/api/v1/servers?*', (route) => route.fulfill({ json: { servers: [server], next: null } }));
  await open(page, 'Servers');
  await row(page, id).getByText('cell is down').waitFor();
  assert.equal(await row(page, id).getByText('vCPU').count() + await page.locator('[title^="0 vCPU"]').count(), 0);
  await row(page, id).getByRole('link').click();
  await page.getByText('cell is down: only its id').waitFor();
  assert.doesNotMatch(await page.locator('.facts').textContent(), /volume|vCPU/);
  await close();
});

test('a session that is over asks for a new one and keeps what was typed in', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Launch');
  await page.getByRole('option', { name: /m1\.tiny/ }).waitFor({ state: 'attached' });
  await page.getByLabel('Name').fill('kept');
  await page.context().clearCookies();
  await page.getByLabel('Flavor').selectOption('m1.tiny');
  await page.getByText('Your session is over. Sign in again to go on.').waitFor();
  await userField(page).fill(account.user);
  await passwordField(page).fill(account.password);
  await page.getByRole('textbox', { name: /^Project/ }).fill(account.project);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: 'Launch' }).waitFor();
  assert.equal(await page.getByLabel('Name').inputValue(), 'kept');
  await close();
});

test('a page does nothing as somebody else who has signed in in another tab', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Connections');
  await settled(page);
  const project = await page.evaluate(async (body) => (await (await fetch('session', {
    method: 'POST', headers: { 'X-Cloudfn-Console': '1', 'Content-Type': 'application/json' }, body: JSON.stringify(body),
  })).json()).project.name, { user: account.user, password: account.password, project: account.second });
  assert.equal(project, account.second);
  await page.getByRole('navigation').getByRole('link', { name: 'Servers', exact: true }).click();
  await page.getByText('Your session is over. Sign in again to go on.').waitFor();
  assert.equal(await page.locator('main').getAttribute('aria-busy'), null, 'the form is there to be read');
  await userField(page).fill(account.user);
  await passwordField(page).fill(account.password);
  await page.getByRole('textbox', { name: /^Project/ }).fill(account.project);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: 'Servers' }).waitFor();
  await page.locator('#who').getByText(account.project).first().waitFor();
  await close();
});

test('a link leads to no other path of the API, and an answer that breaks off is none', { timeout: patience }, async () => {
  const { page, seen, close } = await visit(chrome);
  const asked = [];
  page.on('request', (r) => asked.push(new URL(r.url()).pathname));
  await page.goto(`${base}/console/#/callbacks/..\\..\\session`);
  await page.getByRole('heading', { level: 1, name: 'Overview' }).waitFor();
  await settled(page);
  assert.deepEqual(asked.filter((path) => path.startsWith('/console/api/') && !/^\/console\/api\/v1\/(stats|resources)$/.test(path)), []);
  await page.route('**/console/api/v1/requests*', (route) => route.fulfill({ status: 200, contentType: 'application/json', body: '{"requests": [' }));
  await page.getByRole('navigation').getByRole('link', { name: 'Requests', exact: true }).click();
  await page.locator('#banner').getByText(/cloudfn cannot be reached\. Trying again\./).waitFor();
  await page.unroute('**/console/api/v1/requests*');
  await page.getByRole('row').nth(1).waitFor();
  assert.equal(seen.faults.length, 0);
  await close();
});

test('whoever has signed out leaves nothing behind', { timeout: patience }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Requests');
  await settled(page);
  await page.getByRole('row').nth(1).waitFor();
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  const empty = async () => {
    assert.equal(await page.getByRole('row').count(), 0);
    assert.equal(await page.getByRole('navigation').count(), 0);
    assert.equal((await page.content()).includes(account.project), false);
  };
  await empty();
  await page.goBack();
  await page.getByRole('heading', { name: 'Sign in' }).waitFor();
  await empty();
  assert.equal((await page.context().cookies()).length, 0);
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  await signIn(page);
  await close();
});
