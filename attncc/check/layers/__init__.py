"""Modules of layers against the meaning of their values, evaluated one by one with dense cores."""
