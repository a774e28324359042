"""The routes, one module a family. A route parses, asks the engine or the runner, and shapes the answer."""
