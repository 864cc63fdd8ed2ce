"""Receives cloudfn's events: consents, verifies, answers immediately, and processes them afterwards.

    SECRET=whsec_... PORT=9000 python3 receiver.py
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORIGIN = "cloudfn"  # the sender to accept; the operator may have set another name (CALLBACK_ORIGIN)
TOLERANCE = 300  # seconds that a timestamp may differ: an older delivery is a replay
LARGEST = 1 << 20  # bytes of a body
UNTIL = os.environ.get("UNTIL")  # unsubscribe after an event with this state

events = queue.Queue(1000)
over = threading.Event()  # that state was reached: unsubscribe


def read_key():
    try:
        key = base64.b64decode(os.environ.get("SECRET", "").removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < 24:
        sys.exit("SECRET must be the callback's secret: whsec_ and at least 24 bytes in base64")
    return key


KEY = read_key()


def verify(headers, body):
    """Checks the timestamp and the signatures. There are two while a secret is being rotated; one match is enough."""
    at = headers.get("Webhook-Timestamp", "")
    if not (at.isascii() and at.isdigit() and len(at) <= 12) or abs(time.time() - int(at)) > TOLERANCE:
        return False
    signed = f"{headers.get('Webhook-Id', '')}.{at}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256))
    for signature in headers.get("Webhook-Signature", "").split():
        version, _, text = signature.partition(",")
        if version == "v1" and hmac.compare_digest(text.encode(), expected):
            return True
    return False


class Receiver(BaseHTTPRequestHandler):
    timeout = 10  # seconds to wait for a silent sender

    def do_OPTIONS(self):
        if self.headers.get("WebHook-Request-Origin") != ORIGIN:
            return self.answer(403)
        self.answer(204, {"WebHook-Allowed-Origin": ORIGIN})

    def do_GET(self):  # someone looks whether it serves
        self.answer(405)

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > LARGEST:
            return self.answer(400)
        self.answer(self.take(self.rfile.read(int(length))))

    def take(self, body):
        """Verifies and queues an event, and returns the status of the answer."""
        if not verify(self.headers, body):
            print("rejected: no signature matches, or too old", file=sys.stderr, flush=True)
            return 401
        if over.is_set():
            return 410  # ends the callback: nothing more is sent
        # The signature covers the id, which is subject:sequence, and not the Ce- headers, so subject and sequence are
        # taken from the id.
        event_id = self.headers["Webhook-Id"]
        subject, _, sequence = event_id.partition(":")
        try:
            data = json.loads(body)
            events.put_nowait((event_id, subject, int(sequence), self.headers.get("Ce-Type"), dict(data)))
        except (TypeError, ValueError):
            return 400  # signed, but not an event
        except queue.Full:
            return 503  # the queue is full: cloudfn retries later
        return 204

    def answer(self, status, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def log_request(self, *_):
        pass


def work():
    """Processes each event once; here it prints it. Events arrive in order for each subject, but a redelivered one may
    be older than the newest. A program that must not lose this state keeps both of these in its database."""
    seen, newest = set(), {}
    while True:
        event_id, subject, sequence, kind, data = events.get()
        if event_id in seen:
            continue
        seen.add(event_id)
        late = sequence < newest.get(subject, 0)
        newest[subject] = max(sequence, newest.get(subject, 0))
        state = data.get("state") or data.get("status") or ""  # an instance has a state, an order a status
        print(kind, subject, sequence, state + (" late" if late else ""), flush=True)
        if UNTIL and state == UNTIL and not late:
            over.set()


if __name__ == "__main__":
    threading.Thread(target=work, daemon=True).start()
    address = ("127.0.0.1", int(os.environ.get("PORT", "9000")))
    print(f"listening on {address[0]}:{address[1]}", file=sys.stderr, flush=True)
    ThreadingHTTPServer(address, Receiver).serve_forever()
