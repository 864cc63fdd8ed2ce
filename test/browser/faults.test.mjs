// Outages, sessions that end, and users who change.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  account,
  base,
  browser,
  faultless,
  open,
  passwordField,
  timeLimit,
  picture,
  row,
  settled,
  signIn,
  userField,
  visit,
} from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

test('an unreachable API is reported, what was read stays, and it goes on again', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [0, 503] });
  await open(page, 'Requests');
  await page.getByRole('row').nth(2).waitFor();
  await page.route('**/console/api/**', (route) => route.abort('connectionrefused'));
  await page.getByLabel('Which').selectOption('all');
  await page.getByLabel('Since').selectOption('60');
  await page
    .locator('#banner')
    .getByText(/cloudfn cannot be reached\. What you see is \d+ s old\. Trying again\./)
    .waitFor();
  assert.ok((await page.getByRole('row').count()) > 2);
  await page.unroute('**/console/api/**');
  await page.locator('#banner').waitFor({ state: 'hidden' });
  await close();
});

test('a part of a view that cannot be read is no outage', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [503] });
  await page.route('**/console/api/v1/resources*', (route) =>
    route.fulfill({ status: 503, contentType: 'application/problem+json', body: '{"code": "unavailable"}' }),
  );
  await page.reload();
  await page.locator('.hour').first().waitFor();
  await settled(page);
  assert.equal(await page.locator('#banner').isVisible(), false);
  assert.equal(await page.locator('#live').textContent(), '');
  await close();
});

test('of a server whose cell is down only what is known is shown', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  const id = '4f8052c0-49f2-4b75-a508-5c4454e37731',
    at = new Date().toISOString();
  const server = {
    id,
    name: '',
    status: 'UNKNOWN',
    addresses: [],
    flavor: { name: '', vcpus: 0, ram_mb: 0, disk_gb: 0 },
    image: null,
    zone: '',
    created_at: at,
    updated_at: at,
    instance: null,
    partial: true,
  };
  await page.route(`**/console/api/v1/servers/${id}`, (route) => route.fulfill({ json: server }));
  await page.route('**/console/api/v1/servers?*', (route) =>
    route.fulfill({ json: { servers: [server], next: null } }),
  );
  await open(page, 'Servers');
  await row(page, id).getByText('cell is down').waitFor();
  assert.equal((await row(page, id).getByText('vCPU').count()) + (await page.locator('[title^="0 vCPU"]').count()), 0);
  await row(page, id).getByRole('link').click();
  await page.getByText('cell is down: only its id').waitFor();
  assert.doesNotMatch(await page.locator('.facts').textContent(), /volume|vCPU/);
  await close();
});

test('a session that has expired asks for a new one and keeps what was typed in', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Launch');
  await page.getByRole('option', { name: /m1\.tiny/ }).waitFor({ state: 'attached' });
  await page.getByLabel('Name').fill('kept');
  await page.context().clearCookies();
  await page.getByLabel('Flavor').selectOption('m1.tiny');
  await page.getByText('Your session has expired. Sign in again to go on.').waitFor();
  await userField(page).fill(account.user);
  await passwordField(page).fill(account.password);
  await page.getByRole('textbox', { name: /^Project/ }).fill(account.project);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: 'Launch' }).waitFor();
  assert.equal(await page.getByLabel('Name').inputValue(), 'kept');
  await close();
});

test('a page does nothing as someone else who has signed in in another tab', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  await open(page, 'Connections');
  await settled(page);
  const project = await page.evaluate(
    async (body) =>
      (
        await (
          await fetch('session', {
            method: 'POST',
            headers: { 'X-Cloudfn-Console': '1', 'Content-Type': 'application/json' },
            body: JSON.stringify(body),
          })
        ).json()
      ).project.name,
    { user: account.user, password: account.password, project: account.second },
  );
  assert.equal(project, account.second);
  await page.getByRole('navigation').getByRole('link', { name: 'Servers', exact: true }).click();
  await page.getByRole('heading', { name: 'Another project' }).waitFor();
  await settled(page); // the page is there to be read
  await page.getByRole('button', { name: `Back to ${account.project}` }).click();
  await page.getByRole('heading', { level: 1, name: 'Servers' }).waitFor();
  await page.locator('#who').getByText(account.project).first().waitFor();
  await close();
});

test(
  'a link leads to no other path of the API, and an answer that breaks off is a failure',
  { timeout: timeLimit },
  async () => {
    const { page, seen, close } = await visit(chrome);
    const calls = [];
    page.on('request', (r) => calls.push(new URL(r.url()).pathname));
    await page.goto(`${base}/console/#/callbacks/..\\..\\session`);
    await page.getByRole('heading', { level: 1, name: 'No such page' }).waitFor();
    await settled(page);
    assert.deepEqual(
      calls.filter((path) => path.startsWith('/console/api/') && !/^\/console\/api\/v1\/(stats|resources)$/.test(path)),
      [],
    );
    await page.goto(`${base}/console/#/nonsense`);
    await page.getByRole('link', { name: 'Go to the overview' }).click();
    await page.getByRole('heading', { level: 1, name: 'Overview' }).waitFor();
    await page.route('**/console/api/v1/requests*', (route) =>
      route.fulfill({ status: 200, contentType: 'application/json', body: '{"requests": [' }),
    );
    await page.getByRole('navigation').getByRole('link', { name: 'Requests', exact: true }).click();
    await page
      .locator('#banner')
      .getByText(/cloudfn cannot be reached\. Trying again\./)
      .waitFor();
    await page.unroute('**/console/api/v1/requests*');
    await page.getByRole('row').nth(1).waitFor();
    assert.equal(seen.faults.length, 0);
    await close();
  },
);

test('anyone who has signed out leaves nothing behind', { timeout: timeLimit }, async () => {
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

test('a page that no one uses says so, and all sessions of a user end together', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  const other = await visit(chrome);
  const sent = (value) => page.waitForRequest((r) => r.headers()['x-cloudfn-console'] === value);
  await page.clock.install();
  await open(page, 'Requests');
  await settled(page);
  const onItsOwn = sent('refresh');
  await page.clock.fastForward(61_000);
  await onItsOwn;
  const used = sent('1');
  await open(page, 'Servers');
  await used;
  await page.getByTitle('Your session').click();
  await page.getByRole('dialog').getByText(account.user).first().waitFor();
  await faultless(page, 'the session');
  await picture(page, 'session');
  await page.getByRole('button', { name: 'End all my sessions' }).click();
  await page.getByRole('heading', { level: 1, name: 'Sign in' }).waitFor();
  assert.equal((await page.context().cookies()).length, 0);
  await other.page.getByRole('navigation').getByRole('link', { name: 'Servers', exact: true }).click();
  await other.page.getByText('Your session has expired. Sign in again to go on.').waitFor();
  await close();
  await other.close();
});
