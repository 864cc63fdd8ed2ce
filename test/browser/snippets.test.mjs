// The parts of the API reference that need no browser. Each snippet is run, and what it sends is compared with the
// request. Started by test/contract/reference_test.go.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import {
  exampleRequest, matches, prepare, sentRequest, snippets, tokenPaths,
} from '../../shared/run/docs/snippets.mjs';

const odd = { name: 'it\'s "$HOME" `id` \\ true', none: null, yes: true, list: [1, false], text: 'ü€🙂\n\ttwo' };
const parameter = (name, place, more) => ({ name, in: place, schema: { type: 'string' }, ...more });
const described = {
  security: [{ keystoneToken: [] }],
  paths: {
    '/v1/things/{id}': {
      put: {
        operationId: 'putThing', summary: 'Put a thing', description: 'Prose.',
        parameters: [
          { $ref: '#/components/parameters/RequestId' },
          parameter('id', 'path', { required: true, example: 'a b/c$d' }),
          parameter('kind', 'query', { required: true, schema: { enum: ['x&y'] } }),
          parameter('If-Match', 'header', { required: true, example: '"1"' }),
        ],
        requestBody: { content: { 'application/json': { examples: { one: { value: odd } } } } },
      },
    },
    '/v1/open': { get: { operationId: 'getOpen', security: [] } },
    '/v1/node': { get: { operationId: 'getNode', security: [{ nodeToken: [] }] } },
  },
  components: {
    parameters: { RequestId: parameter('X-Request-Id', 'header', { description: 'An id.', example: 'req-1' }) },
    securitySchemes: {
      keystoneToken: { type: 'apiKey', in: 'header', name: 'X-Auth-Token' },
      nodeToken: { type: 'http', scheme: 'bearer' },
    },
  },
};

test('prose moves behind the parameters, and no optional example is sent', () => {
  const before = structuredClone(described);
  const { paths, components } = prepare(described);
  assert.deepEqual(described, before);
  assert.equal(paths['/v1/things/{id}'].put['x-prose'], 'Prose.');
  assert.equal(paths['/v1/things/{id}'].put.description, undefined);
  assert.equal(components.parameters.RequestId.example, undefined);
  assert.equal(components.parameters.RequestId.description, 'An id.\n\nExample: `req-1`');
  assert.equal(paths['/v1/things/{id}'].put.parameters[1].example, 'a b/c$d');
});

test('the search compares all words', () => {
  const op = { method: 'put', path: '/v1/things/{id}', summary: 'Put a thing', operationId: 'putThing', tag: 'things' };
  for (const phrase of ['PUT thing', '/v1/things', 'putthing', 'a  thing']) assert.ok(matches(op, phrase), phrase);
  for (const phrase of ['put other', '/v1/thin/']) assert.ok(!matches(op, phrase), phrase);
});

test('only operations with a Keystone token get one', () => {
  const takes = tokenPaths(described);
  assert.ok(takes('PUT', '/v1/things/a%20b'));
  for (const [method, path] of [
    ['GET', '/v1/things/a'], ['PUT', '/v1/things/a/b'], ['GET', '/v1/open'], ['GET', '/v1/node'],
  ]) assert.ok(!takes(method, path), `${method} ${path}`);
});

test('a request that was sent is shown without what identifies its sender', () => {
  const headers = { 'X-Auth-Token': 'secret', Authorization: 'secret', 'X-Cloudfn-User': 'secret', Accept: 'text/csv' };
  const request = sentRequest({ url: 'http://h/v1/things/a?b=c', method: 'put', headers, body: '{"a":1}' },
    tokenPaths(described));
  assert.deepEqual(request, {
    method: 'PUT', path: '/v1/things/a?b=c', body: { a: 1 },
    headers: [{ name: 'X-Auth-Token', value: '', env: 'OS_TOKEN' }, { name: 'Accept', value: 'text/csv' }],
  });
});

test('snippets name variables, and commands where there are some', () => {
  const node = exampleRequest(described, '/v1/node', 'get');
  assert.deepEqual(node.headers, [{ name: 'Authorization', value: 'Bearer ', env: 'NODE_TOKEN' }]);
  assert.deepEqual(Object.keys(snippets(node)), ['curl', 'Python', 'Go', 'JavaScript']);
  assert.equal(snippets(node, ['cloudfn a', 'cloudfn b']).CLI, 'cloudfn a\ncloudfn b');
});

test('each snippet sends its request', { timeout: 120_000 }, async () => {
  const dir = mkdtempSync(join(tmpdir(), 'snippets-'));
  const received = [];
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const part of request.setEncoding('utf8')) body += part;
    received.push({ method: request.method, url: request.url, headers: request.headers, body });
    response.end('{}');
  });
  await new Promise((done) => { server.listen(0, '127.0.0.1', done); });
  const env = { ...process.env, CLOUDFN_URL: `http://127.0.0.1:${server.address().port}`, OS_TOKEN: 'to$ken' };
  const run = async (command, name, text) => {
    writeFileSync(join(dir, name), text);
    await promisify(execFile)(command[0], [...command.slice(1), join(dir, name)], { env });
  };
  const commands = {
    curl: [['bash', '-eu'], 'a.sh'], Python: [['python3'], 'a.py'], Go: [['go', 'run'], 'a.go'],
    JavaScript: [['node'], 'a.mjs'],
  };
  try {
    for (const request of [
      exampleRequest(described, '/v1/things/{id}', 'put'), exampleRequest(described, '/v1/open', 'get'),
    ]) {
      const all = snippets(request);
      for (const [language, [command, file]] of Object.entries(commands)) {
        await run(command, file, all[language]);
        const { method, url, headers, body } = received.pop();
        assert.deepEqual([method, url], [request.method, request.path], language);
        if (request.method === 'GET') continue;
        assert.equal(url, '/v1/things/a%20b%2Fc%24d?kind=x%26y', language);
        assert.deepEqual(JSON.parse(body), odd, language);
        assert.deepEqual([headers['x-auth-token'], headers['if-match'], headers['content-type']],
          ['to$ken', '"1"', 'application/json'], language);
      }
    }
  } finally {
    server.close();
    rmSync(dir, { recursive: true });
  }
});
