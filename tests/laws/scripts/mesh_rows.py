"""Cut and resume rows on 4 virtual devices that share each batch, and print their grades as one JSON line.

mesh_rows.py ROW...
"""

from __future__ import annotations

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["KERAS_BACKEND"] = "jax"

import keras

from tests.laws.rows import ROWS

devices = keras.distribution.list_devices()
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
rows = {name: row for section in ROWS.values() for name, row in section.items()}
print("TOLD " + json.dumps({name: rows[name].grade(len(devices)) for name in sys.argv[1:]}))
