// Managed resources: the list, one with its conditions and revisions, and going back.
import { after, before, test } from 'node:test';
import { browser, faultless, open, patience, picture, row, settled, sizes, visit } from './harness.mjs';

let chrome;
before(async () => {
  chrome = await browser();
});
after(() => chrome?.close());

for (const size of Object.keys(sizes)) {
  test(`the list and a resource, ${size}`, { timeout: 2 * patience }, async () => {
    const { page, close } = await visit(chrome, { size });
    await open(page, 'Managed');
    await row(page, 'web').getByText('ready').first().waitFor({ timeout: patience });
    await row(page, 'files').getByText('Configmap').waitFor();
    await settled(page);
    await picture(page, `managed-${size}`);
    await faultless(page, `managed, ${size}`);
    await page.getByRole('radio', { name: 'Volumes' }).check();
    await page.getByText('Nothing is declared').waitFor();
    await page.getByRole('radio', { name: 'Deployments' }).check();
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

test('a rollback makes a new revision, and a resource is deleted', { timeout: 4 * patience }, async () => {
  const { page, close } = await visit(chrome, { expected: [404] });
  await open(page, 'Managed');
  await row(page, 'files').getByRole('link').click();
  await page.getByRole('heading', { level: 1, name: 'files' }).waitFor();
  await page.getByText('welcome → <b>hello</b>').waitFor(); // what revision 2 changed, as text
  await page.getByRole('button', { name: 'Roll back to 1' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click();
  await row(page, '3 (declared)').getByText('repeats 1').waitFor({ timeout: patience });
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('heading', { level: 1, name: 'Managed' }).waitFor({ timeout: 2 * patience });
  await settled(page);
  await row(page, 'files').waitFor({ state: 'detached' });
  await close();
});
