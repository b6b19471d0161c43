"""The implementation of `feedline.torch`: `supervised` and `in_process` run in the trainer, with and without
workers; `worker` runs in workers; `tensors` sends tensors from workers to the trainer."""
