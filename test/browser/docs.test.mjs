// The API reference in a real Chromium: it draws every operation, and does nothing that its policy forbids.
// Started by test/contract/reference_test.go.
import assert from 'node:assert/strict';
import test from 'node:test';
import { chromium } from 'playwright-core';

const base = process.env.DOCS_URL;
const operations = process.env.DOCS_OPERATIONS.split(',');

test('the reference draws every operation', async () => {
  const chrome = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu'],
  });
  try {
    const page = await chrome.newPage();
    const faults = [];
    page.on('console', (m) => {
      if (['error', 'warning'].includes(m.type())) faults.push(m.text());
    });
    page.on('pageerror', (e) => faults.push(e.stack));
    page.on('request', (r) => {
      if (!r.url().startsWith(base) && !r.url().startsWith('data:')) faults.push(`requested ${r.url()}`);
    });
    await page.addInitScript(() =>
      document.addEventListener('securitypolicyviolation', (e) =>
        console.error(`${e.violatedDirective} forbids ${e.blockedURI} ${e.sample}`),
      ),
    );
    await page.goto(`${base}/v1/docs`);
    await page.waitForSelector('.opblock', { timeout: 60_000 });
    const ids = await page.$$eval('.opblock', (blocks) => blocks.map((b) => b.id));
    for (const id of operations)
      assert.ok(
        ids.some((shown) => shown.endsWith(`-${id}`)),
        `${id} is not drawn: ${ids}`,
      );
    await page.click('#operations-callbacks-createCallback .opblock-summary-control');
    await page.waitForSelector('#operations-callbacks-createCallback .responses-table');
    assert.equal(await page.locator('.try-out, .authorize').count(), 0, 'the page offers to send requests');
    assert.deepEqual(faults, []);
    if (process.env.DOCS_SHOT) await page.screenshot({ path: process.env.DOCS_SHOT });
  } finally {
    await chrome.close();
  }
});
