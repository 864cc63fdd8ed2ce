"""Reads user_data as cloud-init does at boot, and writes what it makes of them as JSON: the types of its parts, and
its merged cloud-config."""
import json
import os
import sys
import tempfile

from cloudinit import handlers, helpers, user_data, util
from cloudinit.handlers.cloud_config import CloudConfigPartHandler

with tempfile.TemporaryDirectory() as folder:
    paths = helpers.Paths({'cloud_dir': folder, 'run_dir': folder})
    paths.instance_link = folder
    message = user_data.UserDataProcessor(paths).process(sys.stdin.buffer.read())
    handler = CloudConfigPartHandler(paths)
    handler.cloud_fn = os.path.join(folder, 'merged')
    handler.handle_part(None, handlers.CONTENT_START, None, None, None, None)
    types = []
    for part in message.walk():
        if part.is_multipart():
            continue
        types.append(part.get_content_type())
        if types[-1] == 'text/cloud-config':
            handler.handle_part(None, types[-1], part.get_filename(), util.fully_decoded_payload(part), 'always',
                                dict(part.items()))
    handler.handle_part(None, handlers.CONTENT_END, None, None, None, None)
    with open(handler.cloud_fn) as f:
        json.dump({'types': types, 'config': util.load_yaml(f.read())}, sys.stdout)
