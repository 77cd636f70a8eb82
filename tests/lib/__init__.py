"""Modules that tests of several folders import: programs under test, the clients that drive them, and the machine."""
