//! Tar archives in the WebDataset convention: which members are one sample, and what is in them.
