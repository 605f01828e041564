"""The only modules that touch `keras.src` or a Keras name that begins with an underscore.

Written against Keras 3.15 (see pyproject.toml for the bounds). When Keras moves, these files move.
"""
