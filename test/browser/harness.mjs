// A real Chromium, and an eye on everything that the page does: what it says on the console, which requests it makes,
// what it gets and what it keeps.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const env = (name) => {
  const value = process.env[name];
  assert.ok(value, `${name} is not set: these tests are started by functions/console/browser_test.go`);
  return value;
};

export const base = env('CONSOLE_URL');
/** account is the user of this file of tests: with a project of the file's own, and an empty second one. */
export const account = JSON.parse(env('CONSOLE_ACCOUNTS'))[basename(process.argv[1], '.test.mjs')];
export const receiver = env('CONSOLE_RECEIVER');
export const timeLimit = 90_000; // the sandbox makes a server in seconds, or in a minute when it is busy

const shots = fileURLToPath(new URL('../../.local/screenshots/', import.meta.url));
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const token = /(?<![\w+/=-])gAAAAA[\w-]{60,}/; // how Keystone's tokens begin

export const sizes = {
  light: { viewport: { width: 1280, height: 860 }, colorScheme: 'light' },
  dark: { viewport: { width: 1280, height: 860 }, colorScheme: 'dark' },
  phone: {
    viewport: { width: 320, height: 640 },
    colorScheme: 'light',
    deviceScaleFactor: 2,
    isMobile: true,
    hasTouch: true,
  },
};

/** browser starts Chromium, as root in a container can. Chromium sometimes crashes at its start, before any page. */
export const browser = () => launch().catch(launch).catch(launch);

const launch = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });

/**
 * visit opens the console in a context of its own. The page that it gives is watched; close() holds what happened
 * against what must never be. expected: statuses of answers that the test provokes, which Chromium notes as errors.
 */
export async function visit(chrome, { size = 'light', expected = [], signedIn = true, ...more } = {}) {
  const context = await chrome.newContext({ ...sizes[size], reducedMotion: 'reduce', ...more });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const seen = { faults: [], bytes: 0, bodies: [], checks: [] };
  const allowed = new Set([401, ...expected]); // 401: the first question is whether someone is signed in
  page.on('console', (m) => {
    const status = /status of (\d+)/.exec(m.text());
    if (
      m.type() === 'error' &&
      !(status && allowed.has(Number(status[1]))) &&
      !(expected.includes(0) && /ERR_/.test(m.text()))
    )
      seen.faults.push(`console: ${m.text()} (${m.location().url})`);
  });
  page.on('pageerror', (e) => seen.faults.push(`page error: ${e.stack}`));
  page.on('request', (r) => {
    if (!r.url().startsWith(base) && !r.url().startsWith('blob:') && !r.url().startsWith('data:'))
      seen.faults.push(`requested elsewhere: ${r.url()}`);
  });
  page.on('response', (r) =>
    seen.checks.push(
      r
        .body()
        .then(async (body) => {
          if (token.test(body.toString())) seen.faults.push(`a token is in the answer to ${r.url()}`);
          seen.bytes += (await r.request().sizes()).responseBodySize; // as it was sent
        })
        .catch(() => {}),
    ),
  );
  await page.addInitScript(() => {
    globalThis.violations = [];
    document.addEventListener('securitypolicyviolation', (e) =>
      globalThis.violations.push(`${e.violatedDirective} ${e.blockedURI}`),
    );
  });
  await page.goto(`${base}/console/`);
  await page.locator('form').first().waitFor();
  if (signedIn) await signIn(page);
  return {
    page,
    seen,
    async close() {
      await Promise.race([
        Promise.all(seen.checks),
        new Promise((done) => {
          setTimeout(done, 5_000).unref();
        }),
      ]); // a body that no one reads never comes
      const kept = await page.evaluate(() => ({
        local: JSON.stringify(localStorage),
        session: JSON.stringify(sessionStorage),
        cookie: document.cookie,
        violations: globalThis.violations,
      }));
      assert.deepEqual(kept.violations, [], 'the page keeps to its content security policy');
      assert.equal(kept.cookie, '', 'no script can read a cookie');
      assert.equal(kept.local, '{}', 'nothing is in localStorage');
      assert.ok(
        !token.test(kept.session) && !kept.session.includes(account.password),
        'no secret is in sessionStorage',
      );
      await context.close();
      assert.deepEqual(seen.faults, []);
    },
  };
}

export const userField = (page) => page.getByRole('textbox', { name: 'User', exact: true });
export const passwordField = (page) => page.locator('input[name=password]');

export async function signIn(page, { project = account.project } = {}) {
  await userField(page).fill(account.user);
  await passwordField(page).fill(account.password);
  await page.getByRole('textbox', { name: /^Project/ }).fill(project);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
}

/** open goes to a part by the navigation, as people do. */
export async function open(page, part) {
  await page.getByRole('navigation').getByRole('link', { name: part, exact: true }).click();
  await page.getByRole('heading', { level: 1, name: part }).waitFor();
}

/** settled waits until the view has been read. */
export const settled = (page) => page.locator('main:not([aria-busy])').waitFor();

/** order fills the form in and sends it. */
export async function order(
  page,
  { name, count = '1', flavor = 'm1.tiny', image = 'cirros', network = 'private', more } = {},
) {
  await open(page, 'Launch');
  await page.getByRole('option', { name: /m1\.tiny/ }).waitFor({ state: 'attached' });
  await page.getByLabel('Name').fill(name);
  await page.getByLabel(/^How many/).fill(count);
  await page.getByLabel('Flavor').selectOption(flavor);
  await page.getByLabel('Image').selectOption(image);
  const networks = page.getByRole('group', { name: /^Networks/ }).getByRole('checkbox');
  if ((await networks.count()) > 1) await page.getByRole('checkbox', { name: new RegExp(`^${network}`) }).check();
  await more?.();
  await page.getByRole('button', { name: 'Launch' }).click();
}

/** row is the row of a table that begins with a name. */
export const row = (page, name) =>
  page.getByRole('row').filter({ has: page.getByRole('rowheader', { name, exact: true }) });

/** faultless holds the page against axe-core's rules: no serious or critical fault. */
export async function faultless(page, what) {
  await page.evaluate(`${axe}; globalThis.axe = axe; 0`); // from outside the page, so that its policy has no say
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  const bad = violations
    .filter((v) => ['serious', 'critical'].includes(v.impact))
    .map(
      (v) =>
        `${v.id}: ${v.help}\n  ${v.nodes
          .slice(0, 4)
          .map((n) => `${n.html.slice(0, 160)} ${n.any[0]?.message || n.failureSummary}`)
          .join('\n  ')}`,
    );
  assert.deepEqual(bad, [], what);
}

/** picture keeps a screenshot, and holds the page against sideways scrolling. */
export async function picture(page, name) {
  mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: `${shots}${name}.png`, fullPage: true, animations: 'disabled' });
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(over <= 0, `${name} can be scrolled sideways by ${over} pixels`);
}
