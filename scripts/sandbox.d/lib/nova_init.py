"""nova-manage api_db sync; cell_v2 map_cell0; db sync; cell_v2 create_cell -
the same commands, in one process (each start of nova-manage costs seconds)."""
import sys

from nova import config
from nova import context
from nova import objects
from nova.cmd import manage

config.parse_args(['nova-manage'] + sys.argv[1:])
objects.register_all()
manage.ApiDbCommands().sync()
cells = manage.CellV2Commands()
api_db = manage.CONF.api_database.connection
cells.map_cell0(database_connection=api_db.replace('/nova_api?', '/nova_cell0?'))
manage.DbCommands().sync()
have = [c.name for c in
        objects.CellMappingList.get_all(context.get_admin_context())]
if 'cell1' not in have:
    rc = cells.create_cell(
        name='cell1',
        database_connection=manage.CONF.database.connection,
        transport_url='{scheme}://{username}:{password}@{hostname}:{port}//')
    if rc:
        sys.exit('create_cell: %s' % rc)
