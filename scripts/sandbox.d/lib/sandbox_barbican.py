"""Barbican's API, with the pipeline in the folder of its configuration: its own factory reads it from /etc/barbican."""
import os

from paste import deploy


def application():
    return deploy.loadapp('config:%s/barbican-api-paste.ini' % os.environ['HOME'])
