"""The error a user can act on: one line that says what is wrong, where, and what to do next."""


class InputError(ValueError):
    """Bad input or bad usage. The command line prints its message alone and exits with code 2."""
