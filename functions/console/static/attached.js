// What is attached to a server: its volumes and floating IPs.
import { el, button, table, say } from './dom.js';
import { keyed } from './lists.js';
import { get, call } from './api.js';
import { confirm, ask, labelled } from './dialogs.js';

/** attached shows what a server has. load reads it; a cloud without such a service shows nothing of it. */
export function attached(id, refresh) {
  const path = `/v1/servers/${id}`;
  let name = id;

  const volumes = part({
    title: 'Volumes',
    field: 'volumes',
    columns: [['Volume'], ['GB', 'n'], ['Status'], ['Device', 'mono'],
      ['With the server', 'aside']],
    cells: (v) => [v.name || v.id, String(v.size_gb), v.status, v.device,
      v.delete_on_termination ? 'deleted with it' : 'stays when it is deleted'],
    mayDetach: (v) => !v.boot,
    nameOf: (v) => v.name || v.id,
    async choices() {
      const { volumes: all } = await get('/v1/volumes?status=available&limit=1000');
      return all.map((v) => [v.id, `${v.name || v.id}: ${v.size_gb} GB`]);
    },
    none: 'The project has no volume that is available: make one on the page Volumes.',
    body: (volume) => ({ volume_id: volume }),
  });
  const floating = part({
    title: 'Floating IPs',
    field: 'floating_ips',
    columns: [['Address', 'mono'], ['Fixed address', 'mono'], ['Status']],
    cells: (f) => [f.address, f.fixed_address, f.status],
    mayDetach: () => true,
    nameOf: (f) => f.address,
    async choices() {
      const { floating_ips: all } = await get('/v1/floating-ips?attached=false&limit=1000');
      return [['', 'A new one'], ...all.map((f) => [f.id, f.address])];
    },
    none: '',
    body: (one) => (one ? { floating_ip_id: one } : {}),
  });

  function part(p) {
    const list = table(`${p.title} of the server`, [...p.columns, ['Actions', 'acting']]);
    const url = `${path}/${p.field.replace('_', '-')}`;
    const detach = (item) => () => confirm(`Detach ${p.nameOf(item)} from ${name}?`, 'It stays in the project.',
      'Detach', async () => {
        await call('DELETE', `${url}/${item.id}`);
        say(`${p.nameOf(item)} is being detached.`);
        refresh();
      });
    const attach = async () => {
      const found = await p.choices();
      const choice = el('select', {}, found.map(([value, text]) => el('option', { value }, text)));
      ask(`Attach to ${name}`, found.length ? '' : p.none, 'Attach', async () => {
        await call('POST', url, p.body(choice.value));
        say(`It is attached to ${name}.`);
        refresh();
      }, labelled(p.title, choice));
    };
    const node = el('section', { hidden: true }, el('div', { class: 'head' }, el('h2', {}, p.title),
      button('Attach', () => attach().catch((problem) => say(problem.message)),
        { kind: 'quiet', label: `Attach ${p.title.toLowerCase()}` })), list.node);
    const row = (item) => list.row(...p.cells(item), p.mayDetach(item) ? el('div', { class: 'acts' }, button('Detach',
      detach(item), { kind: 'quiet', key: 'detach', label: `Detach ${p.nameOf(item)}` })) : null);
    return { node, async load() {
      const items = (await get(url))[p.field];
      node.hidden = false;
      list.node.hidden = !items.length;
      keyed(list.body, items, (i) => i.id, row);
    } };
  }

  return {
    node: el('div', { class: 'stack' }, volumes.node, floating.node),
    async load(server) {
      name = server.name || id;
      await Promise.all([volumes, floating].map((p) => p.load().catch((problem) => {
        if (![403, 404, 501].includes(problem.status)) throw problem;
        p.node.hidden = true;
      })));
    },
  };
}
