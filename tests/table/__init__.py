"""Strategies of training, a row each, beside what their plans predict."""
