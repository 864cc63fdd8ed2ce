"""Keystone's public application for a server with threads.

Keystone's middleware keeps a request's token in an attribute of itself, which
all threads share (AuthContextMiddleware.token, Keystone 22): under load it
judged a request by the token of another one, and let application credentials
make trusts. Here each thread has a token of its own, as each process has one
where Keystone runs in processes.
"""
import threading

from keystone.server import wsgi
from keystone.server.flask.request_processing.middleware import auth_context

_of_thread = threading.local()


def _get(_middleware):
    return getattr(_of_thread, 'token', None)


def _set(_middleware, token):
    _of_thread.token = token


auth_context.AuthContextMiddleware.token = property(_get, _set)
initialize = wsgi.initialize_public_application
