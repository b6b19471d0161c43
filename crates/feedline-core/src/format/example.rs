//! The features of tf.train.Example and tf.train.SequenceExample, read where they lie.
