// Nodes, for an admin: how full they are, a drain, and what a drain would do.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { browser, faultless, open, timeLimit, picture, settled, signIn, sizes, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

const card = (page, name) =>
  page.locator('.card').filter({ has: page.getByRole('link', { name, exact: true }) });

/** shows has a page show a drain of a cordoned host: a real one would move what other tests have there. */
const shows = (page, node, drain) => page.route(new RegExp(`/console/api/v1/nodes/${node}$`), async (route) => {
  const answer = await route.fetch();
  await route.fulfill({ response: answer, json: { ...(await answer.json()), schedulable: false, cordoned_by: 'cloudfn',
    drain: { moving: [], skipped: [], automatic: false, ...drain() } } });
});

for (const size of Object.keys(sizes)) {
  test(`nodes and one of them, ${size}`, { timeout: 2 * timeLimit }, async () => {
    const { page, close } = await visit(chrome, { size });
    await shows(page, 'compute-1', () => ({ state: 'done', done: 1, left: 0, servers: [
      { server_id: '0000-1', name: 'moved-1', method: 'live', state: 'moved', reason: '', target: 'compute-2' },
      { server_id: '0000-2', name: '<b>kept</b>', state: 'skipped', reason: 'the server is paused' },
    ] }));
    await open(page, 'Nodes');
    await card(page, 'compute-1').getByText('vCPUs').waitFor();
    await card(page, 'compute-1').locator('.mark').getByText('up').waitFor({ timeout: timeLimit });
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

test('a drain is shown as it goes on, without a reload', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome);
  let moved = 0, reads = 0;
  await shows(page, 'compute-2', () => {
    reads++;
    const server = (n) => ({ server_id: `0000-${n}`, name: `web-${n}`, method: 'live', reason: '', target: 'compute-1',
      state: n < moved ? 'moved' : 'migrating' });
    return { state: moved < 3 ? 'running' : 'done', done: moved, left: 3 - moved, servers: [0, 1, 2].map(server) };
  });
  await open(page, 'Nodes');
  await card(page, 'compute-2').getByRole('link').click();
  await page.getByText('drain running').waitFor();
  await page.getByText('0 of 3').waitFor();
  await page.getByRole('button', { name: 'Stop draining compute-2' }).waitFor();
  moved = 2;
  await page.getByText('2 of 3').waitFor();
  await settled(page);
  await faultless(page, 'a running drain');
  moved = 3;
  await page.getByText('drain done').waitFor();
  await page.getByText('3 of 3').waitFor();
  await page.getByRole('button', { name: 'Uncordon compute-2' }).waitFor();
  assert.ok(reads > 2, 'it is read again and again');
  await close();
});

test('policy decides who gets the nodes, whatever the role', { timeout: timeLimit }, async () => {
  const { page, close } = await visit(chrome, { signedIn: false, expected: [403] });
  const answers = [];
  await page.route(/\/console\/api\/v1\/nodes\?limit=1$/, async (route) => {
    answers.push(403);
    await route.fulfill({ status: 403, json: { status: 403, code: 'forbidden', detail: 'not yours' } });
  });
  await signIn(page); // with the role admin
  await open(page, 'Leases');
  await settled(page);
  assert.equal(answers.length, 1, 'it asks once');
  assert.equal(await page.getByRole('link', { name: 'Nodes', exact: true }).count(), 0, 'no part');
  assert.equal(await page.getByRole('link', { name: 'Hosts' }).count(), 0, 'no calendar of hosts');
  await close();
});
