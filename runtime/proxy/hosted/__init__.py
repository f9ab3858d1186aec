"""Arrays and programs of clients on hosts: the front has handles, specs and views, workers the buffers."""
