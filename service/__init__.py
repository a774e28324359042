"""fullview over HTTP and on the command line: `create_app(settings)` and `fullview`."""
