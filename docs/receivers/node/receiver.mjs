// Receives cloudfn's events: consents, verifies, answers immediately, and processes them afterwards.
//
//     SECRET=whsec_... PORT=9000 node receiver.mjs

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const origin = "cloudfn"; // the sender to accept; the operator may have set another name (CALLBACK_ORIGIN)
const tolerance = 300; // seconds that a timestamp may differ: an older delivery is a replay
const largest = 1 << 20; // bytes of a body
const until = process.env.UNTIL; // unsubscribe after an event with this state

const key = Buffer.from((process.env.SECRET ?? "").replace(/^whsec_/, ""), "base64");
if (key.length < 24) {
  console.error("SECRET must be the callback's secret: whsec_ and at least 24 bytes in base64");
  process.exit(1);
}

const seen = new Set(); // ids
const newest = new Map(); // sequence by subject
let waiting = 0; // events that were accepted and not processed yet
let over = false; // the state of UNTIL was reached: unsubscribe

// verify checks the timestamp and the signatures. There are two while a secret is being rotated; one match is enough.
function verify(headers, body) {
  const at = headers["webhook-timestamp"] ?? "";
  if (!/^\d{1,12}$/.test(at) || Math.abs(Date.now() / 1000 - Number(at)) > tolerance) return false;
  const expected = createHmac("sha256", key).update(`${headers["webhook-id"]}.${at}.`).update(body).digest();
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => {
    const [version, text] = signature.split(",");
    const signed = Buffer.from(text ?? "", "base64");
    return version === "v1" && signed.length === expected.length && timingSafeEqual(signed, expected);
  });
}

// take verifies and queues an event, and returns the status of the answer.
function take(headers, body) {
  if (!verify(headers, body)) {
    console.error("rejected: no signature matches, or too old");
    return 401;
  }
  if (over) return 410; // ends the callback: nothing more is sent
  // The signature covers the id, which is subject:sequence, and not the Ce- headers, so these are taken from the id.
  const id = headers["webhook-id"];
  const [subject, sequence] = id.split(":");
  const data = parse(body);
  if (data === null || !/^\d{1,15}$/.test(sequence ?? "")) return 400; // signed, but not an event
  if (waiting >= 1000) return 503; // the queue is full: cloudfn retries later
  waiting++;
  setImmediate(() => {
    waiting--;
    work({ id, subject, sequence: Number(sequence), type: headers["ce-type"], data });
  });
  return 204;
}

// work processes each event once; here it prints it. Events arrive in order for each subject, but a redelivered one may
// be older than the newest. A program that must not lose this state keeps `seen` and `newest` in its database.
function work({ id, subject, sequence, type, data }) {
  if (seen.has(id)) return;
  seen.add(id);
  const known = newest.get(subject) ?? 0;
  const late = sequence < known;
  newest.set(subject, Math.max(sequence, known));
  const state = data.state ?? data.status ?? ""; // an instance has a state, an order a status
  console.log(type, subject, sequence, late ? `${state} late` : state);
  if (until && state === until && !late) over = true;
}

// parse returns the JSON object in a body, or null.
function parse(body) {
  try {
    const data = JSON.parse(body);
    return typeof data === "object" && !Array.isArray(data) ? data : null;
  } catch {
    return null;
  }
}

// read returns the body of a request, or null if it is too large.
async function read(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > largest) return null;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

const server = createServer(async (request, response) => {
  try {
    if (request.method === "OPTIONS") {
      const allowed = request.headers["webhook-request-origin"] === origin;
      response.writeHead(allowed ? 204 : 403, allowed ? { "WebHook-Allowed-Origin": origin } : {});
    } else if (request.method === "POST") {
      const body = await read(request);
      response.writeHead(body === null ? 400 : take(request.headers, body));
    } else {
      response.writeHead(405, { Allow: "OPTIONS, POST" });
    }
    response.end();
  } catch {
    request.destroy(); // the sender closed the connection
  }
});
server.requestTimeout = 10_000;
const port = Number(process.env.PORT ?? 9000);
server.listen(port, "127.0.0.1", () => console.error(`listening on 127.0.0.1:${port}`));
