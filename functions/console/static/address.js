// The address after #: a part, the id of one of it, and filters, which Back and a reload find again.

/** here is what the address names. */
export function here() {
  const [path, filters] = location.hash.replace(/^#\/?/, '').split('?');
  const [part, id] = (path || 'overview').split('/');
  return { part, id, query: new URLSearchParams(filters) };
}

/** filter is the value of a filter, or ''. */
export const filter = (name) => here().query.get(name) || '';

/** keep writes filters into the address. */
export function keep(values) {
  const { part, id, query } = here();
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  history.replaceState(null, '', `#/${part}${id ? `/${id}` : ''}${query.size ? `?${query}` : ''}`);
}
