// Managed resources: the list, one with its conditions and revisions, and going back.
import { after, before, test } from 'node:test';
import { browser, faultless, open, timeLimit, picture, row, settled, sizes, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

for (const size of Object.keys(sizes)) {
  test(`the list and a resource, ${size}`, { timeout: 2 * timeLimit }, async () => {
    const { page, close } = await visit(chrome, { size });
    await open(page, 'Managed');
    await row(page, 'web').getByText('ready').first().waitFor({ timeout: timeLimit });
    await row(page, 'files').getByText('Configmap').waitFor();
    await settled(page);
    await picture(page, `managed-${size}`);
    await faultless(page, `managed, ${size}`);
    await page.getByRole('radio', { name: 'Volumes' }).check();
    await page.getByText('Nothing is declared').waitFor();
    await page.getByRole('radio', { name: 'Deployments', exact: true }).check();
    await row(page, 'web').getByRole('link').click();
    await page.getByRole('heading', { level: 1, name: 'web' }).waitFor();
    await row(page, 'Ready').getByText('True').waitFor();
    await page.getByRole('heading', { name: 'Revisions' }).waitFor();
    await settled(page);
    await picture(page, `managed-one-${size}`);
    await faultless(page, `managed resource, ${size}`);
    await close();
  });
}

test('a rollback makes a new revision, and a resource is deleted', { timeout: 4 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [404] });
  await open(page, 'Managed');
  await row(page, 'files').getByRole('link').click();
  await page.getByRole('heading', { level: 1, name: 'files' }).waitFor();
  const compared = page.getByRole('region', { name: 'Compare' });
  const change = compared.getByRole('table', { name: 'Differences from revision 1 to revision 2' });
  await change.getByRole('row', { name: 'spec.data.motd welcome <b>hello</b>' }).waitFor(); // as text
  await compared.getByRole('combobox', { name: 'Compare revision' }).selectOption('2');
  await compared.getByText('They do not differ.').waitFor();
  await page.getByRole('button', { name: 'Compare 1 with the declared revision' }).click();
  await change.waitFor();
  await page.getByRole('button', { name: 'Roll back to 1' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click();
  await row(page, '3 (declared)').getByRole('cell', { name: '1', exact: true }).waitFor({ timeout: timeLimit });
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('heading', { level: 1, name: 'Managed' }).waitFor({ timeout: 2 * timeLimit });
  await settled(page);
  await row(page, 'files').waitFor({ state: 'detached' });
  await close();
});

test('a deployment is scaled, and compared with what is real', { timeout: 4 * timeLimit }, async () => {
  const { page, close } = await visit(chrome, { expected: [412] });
  await open(page, 'Managed');
  await row(page, 'web').getByRole('link').click();
  const compared = page.getByRole('region', { name: 'Compare' });
  await compared.getByRole('combobox', { name: 'with' }).selectOption('what is real');
  await compared.getByText('They do not differ.').waitFor();
  await page.getByRole('button', { name: 'Scale' }).click();
  const dialog = page.getByRole('dialog');
  const count = dialog.getByRole('spinbutton', { name: 'How many servers' });
  await count.fill('');
  await dialog.getByRole('button', { name: 'Scale' }).click();
  await dialog.getByText('give 0 to 100').waitFor();
  await count.fill('1');
  await settled(page);
  await faultless(page, 'scale');
  await dialog.getByRole('button', { name: 'Scale' }).click();
  await page.locator('#toast', { hasText: 'web is scaled to 1.' }).waitFor();
  await row(page, '2 (declared)').waitFor();
  await compared.getByRole('row', { name: 'spec.count 2 1' }).waitFor();
  await page.getByText('1 of 1', { exact: true }).waitFor({ timeout: 2 * timeLimit });
  await faultless(page, 'scaled');
  await close();
});
