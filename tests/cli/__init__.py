"""The command line: options, help, gates, pipes, outputs, careless use, the commands of the docs, the MCP server."""
