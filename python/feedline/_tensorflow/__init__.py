"""The implementation of `feedline.tensorflow`."""
