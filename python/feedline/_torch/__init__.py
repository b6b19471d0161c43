"""What `feedline.torch` is made of: `epoch` in the trainer, `worker` in workers, `tensors` on the way."""
