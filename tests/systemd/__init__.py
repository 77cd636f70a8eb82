"""A package, so that python3-systemd, where it is installed, does not hide this folder."""
