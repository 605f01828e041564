"""Train a small CNN on scikit-learn's handwritten digits under a run.

    python examples/quickstart.py [--epochs 12] [--seed 0]

Kill it at any time, then: xptrain resume @last
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import xptrain


def make_model(width: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(width, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    digits = load_digits()
    images = (digits.images[..., None] / 16.0).astype("float32")
    x, xv, y, yv = train_test_split(images, digits.target, test_size=0.2, random_state=0)

    config = {"width": 16, "lr": 2e-3, "batch_size": 32}
    with xptrain.run("digits", seed=args.seed, config=config, description="A small CNN on digits.") as run:
        model = make_model(run.config.width)
        optimizer = keras.optimizers.Adam(run.config.lr)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        run.fit(
            model,
            x,
            y,
            batch_size=run.config.batch_size,
            epochs=args.epochs,
            validation_data=(xv, yv),
            callbacks=[
                keras.callbacks.EarlyStopping("val_loss", patience=4, restore_best_weights=True),
                keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2),
            ],
        )


if __name__ == "__main__":
    main()
