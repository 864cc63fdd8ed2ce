"""Serve a WSGI application with keep-alive: sandbox_wsgi.py module:factory HOST PORT THREADS [args...]

One process; its threads belong to requests and not to connections, so that
idle keep-alive connections cost none of them.
"""
import importlib
import socket
import sys

import waitress
from waitress import task


def _say_so(execute):
    """waitress closes after the answer to a HEAD, but does not say so."""
    def run(self):
        if self.request.command == 'HEAD':
            self.request.headers['CONNECTION'] = 'close'
        return execute(self)
    return run


task.WSGITask.execute = _say_so(task.WSGITask.execute)
target, host, port, threads = sys.argv[1:5]
sys.argv[1:] = sys.argv[5:]
# Listens before it can serve: who comes early waits, and does not fail.
listener = socket.create_server((host, int(port)), backlog=1024)
module, factory = target.split(':')
application = getattr(importlib.import_module(module), factory)()
waitress.serve(application, sockets=[listener], threads=int(threads),
               ident=None, connection_limit=1000, asyncore_use_poll=True,
               channel_timeout=120)
