"""cinder-volume with the in-tree fake driver, in one process.

A volume is a record and holds no data.  The fake driver is an LVM driver whose
commands do nothing, but it would still fetch images, and read volumes, by way
of a block device.  Here a volume that is made of an image is immediately available,
and an image that is made of a volume holds a few bytes.
"""
# Before all else: it has eventlet patch the locks of what is imported later.
from cinder.cmd import volume

import io

from cinder.tests import fake_driver


class Driver(fake_driver.FakeLoggingVolumeDriver):
    def clone_image(self, context, volume, image_location, image_meta, image_service):
        return {}, True

    def copy_image_to_volume(self, context, volume, image_service, image_id, *args, **kwargs):
        pass

    def copy_volume_to_image(self, context, volume, image_service, image_meta):
        image_service.update(context, image_meta['id'], {},
                             io.BytesIO(b'volume ' + volume.id.encode()), store_id=None)

    def extend_volume(self, volume, new_size):
        pass

    def revert_to_snapshot(self, context, volume, snapshot):
        pass


def main():
    from oslo_service import service
    # One process, where cinder-volume forks one for each backend.
    volume.service.get_launcher = lambda: service.ServiceLauncher(volume.CONF)
    volume.main()
