"""Values as data: how any Python value that a fit may hold is stored without pickle, and made again."""
