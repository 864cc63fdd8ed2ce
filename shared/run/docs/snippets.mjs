// The parts of the reference that need no browser: what the page changes in openapi.yaml, what its search finds, and
// requests as snippets.

const encode = (value) => encodeURIComponent(value).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
const deref = (spec, node) =>
  node?.$ref ? deref(spec, node.$ref.slice(2).split('/').reduce((at, key) => at[key], spec)) : node;
const operationsOf = (spec) =>
  Object.entries(spec.paths).flatMap(([path, item]) =>
    Object.entries(item).filter(([, op]) => op.operationId).map(([method, op]) => ({ path, method, op })),
  );

/**
 * prepare returns openapi.yaml as the page draws it. Prose moves to x-prose, which is drawn after the parameters. The
 * example of an optional parameter moves to its description: Swagger UI would send it with every request that is tried.
 */
export function prepare(given) {
  const spec = structuredClone(given);
  const operations = operationsOf(spec);
  for (const { op } of operations) {
    op['x-prose'] = op.description || '';
    delete op.description;
  }
  const parameters = [...operations.flatMap(({ op }) => op.parameters || []),
    ...Object.values(spec.components?.parameters || {})];
  for (const p of parameters) {
    if (p.required || p.example === undefined) continue;
    const example = typeof p.example === 'string' ? p.example : JSON.stringify(p.example);
    p.description = `${p.description || ''}\n\nExample: \`${example}\``.trim();
    delete p.example;
  }
  return spec;
}

/** matches reports whether an operation has every word of the phrase in its path, summary, operationId or tag. */
export function matches({ method, path, summary = '', operationId = '', tag = '' }, phrase) {
  const text = [method, path, summary, operationId, tag].join(' ').toLowerCase();
  return phrase.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** tokenPaths returns a function that reports whether a request is of an operation that takes a Keystone token. */
export function tokenPaths(spec) {
  const known = operationsOf(spec)
    .filter(({ op }) => (op.security ?? spec.security).some((schemes) => schemes.keystoneToken))
    .map(({ path, method }) => [method, new RegExp(`^${path.replace(/\./g, '\\.').replace(/\{\w+\}/g, '[^/]+')}$`)]);
  return (method, pathname) => known.some(([m, path]) => m === method.toLowerCase() && path.test(pathname));
}

/** credential is a header whose value is in an environment variable. */
function credential(name, scheme) {
  const env = name === 'keystoneToken' ? 'OS_TOKEN' : name.replace(/[A-Z]/g, '_$&').toUpperCase();
  if (scheme.type === 'http') return { name: 'Authorization', value: 'Bearer ', env };
  if (scheme.in === 'cookie') return { name: 'Cookie', value: `${scheme.name}=`, env };
  return { name: scheme.name, value: '', env };
}

const sample = (spec, p) => {
  const schema = deref(spec, p.schema) || {};
  return p.example ?? schema.example ?? schema.const ?? schema.default ?? schema.enum?.[0] ?? p.name;
};

/** exampleRequest returns the request of an operation with what it requires, from its examples. */
export function exampleRequest(spec, path, method) {
  const op = spec.paths[path][method];
  const required = (op.parameters || []).map((p) => deref(spec, p)).filter((p) => p.required);
  const located = (place) => required.filter((p) => p.in === place).map((p) => [p.name, String(sample(spec, p))]);
  const target = located('path').reduce((to, [name, value]) => to.replace(`{${name}}`, encode(value)), path);
  const query = located('query').map(([name, value]) => `${encode(name)}=${encode(value)}`).join('&');
  const schemes = Object.keys((op.security ?? spec.security ?? [])[0] || {});
  const headers = schemes.map((name) => credential(name, spec.components.securitySchemes[name]));
  headers.push(...located('header').map(([name, value]) => ({ name, value })));
  const [type, media] = Object.entries(deref(spec, op.requestBody)?.content || {})[0] || [];
  if (type) headers.push({ name: 'Content-Type', value: type });
  const body = type && (media.example ?? deref(spec, Object.values(media.examples || {})[0])?.value ?? {});
  return { method: method.toUpperCase(), path: query ? `${target}?${query}` : target, headers, body };
}

const secret = /^(authorization|cookie|x-auth-token|x-cloudfn-.*)$/i;

/** sentRequest returns a request that the page sent. A variable replaces its token. */
export function sentRequest({ url, method, headers = {}, body }, takesToken) {
  const { pathname, search } = new URL(url, 'http://localhost');
  const kept = Object.entries(headers).filter(([name]) => !secret.test(name)).map(([name, value]) => ({ name, value }));
  if (takesToken(method, pathname)) kept.unshift({ name: 'X-Auth-Token', value: '', env: 'OS_TOKEN' });
  let value = body;
  try {
    value = JSON.parse(body);
  } catch {
    // not JSON, or no body
  }
  return { method: method.toUpperCase(), path: pathname + search, headers: kept, body: value };
}

/** valueOf returns the value of a header as an expression. */
const valueOf = ({ value, env }, read, plus) =>
  [value && JSON.stringify(value), env && read(env)].filter(Boolean).join(plus) || '""';
const indent = (text, by) => text.replaceAll('\n', `\n${by}`);
const textOf = (body) => (typeof body === 'string' ? body : JSON.stringify(body, null, 2));
const inShell = (text) => text.replace(/[\\"$`]/g, '\\$&');

function curl({ method, path, headers, body }) {
  const lines = [`curl -X ${method} "$CLOUDFN_URL${inShell(path.replaceAll('!', '%21'))}"`];
  for (const { name, value, env } of headers) lines.push(`-H "${name}: ${inShell(value)}${env ? `$${env}` : ''}"`);
  if (body !== undefined) lines.push(`--data-raw '${textOf(body).replaceAll("'", "'\\''")}'`);
  return lines.join(' \\\n  ');
}

const inPython = { true: 'True', false: 'False', null: 'None' };

function python({ method, path, headers, body }) {
  const value = (h) => valueOf(h, (env) => `os.environ["${env}"]`, ' + ');
  const literal = JSON.stringify(body, null, 4)?.replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, (t) => inPython[t] ?? t);
  return [
    'import json, os, urllib.request\n',
    'request = urllib.request.Request(',
    `    os.environ["CLOUDFN_URL"] + ${JSON.stringify(path)},`,
    `    method="${method}",`,
    '    headers={',
    ...headers.map((h) => `        ${JSON.stringify(h.name)}: ${value(h)},`),
    '    },',
    ...(body === undefined ? [] : [typeof body === 'string' ? `    data=${literal}.encode(),` :
      `    data=json.dumps(${indent(literal, '    ')}).encode(),`]),
    ')',
    'with urllib.request.urlopen(request) as response:',
    '    print(response.status, response.read().decode())',
  ].join('\n');
}

function go({ method, path, headers, body }) {
  const value = (h) => valueOf(h, (env) => `os.Getenv("${env}")`, '+');
  const text = body === undefined ? '' : textOf(body);
  const literal = text.includes('`') ? JSON.stringify(text) : `\`${text}\``;
  const imports = ['fmt', 'io', 'log', 'net/http', 'os', ...(text ? ['strings'] : [])];
  return [
    'package main\n',
    `import (\n${imports.map((name) => `\t"${name}"`).join('\n')}\n)\n`,
    'func main() {',
    `\turl := os.Getenv("CLOUDFN_URL") + ${JSON.stringify(path)}`,
    `\treq, err := http.NewRequest("${method}", url, ${text ? `strings.NewReader(${literal})` : 'nil'})`,
    '\tif err != nil {\n\t\tlog.Fatal(err)\n\t}',
    ...headers.map((h) => `\treq.Header.Set(${JSON.stringify(h.name)}, ${value(h)})`),
    '\tresp, err := http.DefaultClient.Do(req)',
    '\tif err != nil {\n\t\tlog.Fatal(err)\n\t}',
    '\tdefer resp.Body.Close()',
    '\tbody, err := io.ReadAll(resp.Body)',
    '\tif err != nil {\n\t\tlog.Fatal(err)\n\t}',
    '\tfmt.Println(resp.Status, string(body))',
    '}',
  ].join('\n');
}

function javascript({ method, path, headers, body }) {
  const value = (h) => valueOf(h, (env) => `process.env.${env}`, ' + ');
  return [
    `const response = await fetch(process.env.CLOUDFN_URL + ${JSON.stringify(path)}, {`,
    `  method: '${method}',`,
    '  headers: {',
    ...headers.map((h) => `    ${JSON.stringify(h.name)}: ${value(h)},`),
    '  },',
    ...(body === undefined ? [] : [typeof body === 'string' ? `  body: ${JSON.stringify(body)},` :
      `  body: JSON.stringify(${indent(JSON.stringify(body, null, 2), '  ')}),`]),
    '});',
    'console.log(response.status, await response.text());',
  ].join('\n');
}

/** snippets returns a request in each language, by the language's name. commands: usages of the CLI, if it has any. */
export const snippets = (request, commands = []) => ({
  curl: curl(request),
  ...(commands.length ? { CLI: commands.join('\n') } : {}),
  Python: python(request),
  Go: go(request),
  JavaScript: javascript(request),
});
