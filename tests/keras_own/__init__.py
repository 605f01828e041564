"""Keras's own tests, with its six training methods routed through `xptrain.Trainer`."""
