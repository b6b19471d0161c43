//! The framing of TFRecord files: a length, its checksum, the data, their checksum.
