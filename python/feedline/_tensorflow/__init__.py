"""What `feedline.tensorflow` is made of."""
