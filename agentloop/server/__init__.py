"""The server. As a library: `async with agentloop.server.app.serve(options) as server`."""
