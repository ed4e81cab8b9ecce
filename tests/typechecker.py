"""Checks types and array shapes at run time: tests/conftest.py applies it to every module of trajstitch."""

from beartype import BeartypeConf, beartype

# Not at random: the first item of a sequence is checked, so that every run of the tests checks the same.
check = beartype(conf=BeartypeConf(is_pep484_tower=True, is_random=False))
