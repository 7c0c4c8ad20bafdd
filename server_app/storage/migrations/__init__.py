"""The history of the tables: alembic's revisions, each of which leads up to a version and down from it.

`fedcore server upgrade` runs them (`server_app/storage/schema.py`). A new database is made from `tables.py` at once; a
test compares the two ways.
"""
