//! The contract of every source, as a function that tests call.

use crate::sample::Extent;
use crate::source::Source;

/// Checks that a source fulfils its contract.
///
/// # Panics
/// If it does not; the message says what is wrong.
pub fn check_source(source: &dyn Source) {
    let samples = source.len();
    assert!(samples > 0, "creating a source without samples must be an error");
    assert_eq!(source.len(), samples, "the number of samples is constant");
    assert_eq!(source.fingerprint(), source.fingerprint(), "the fingerprint is constant");
    let classes = source.classes();
    for index in (0..samples).step_by((samples as usize / 100).max(1)).chain([samples - 1]) {
        assert_eq!(
            source.extent(index),
            source.extent(index),
            "the extent of sample {index} is constant"
        );
        assert_eq!(
            source.label(index),
            source.label(index),
            "the label of sample {index} is constant"
        );
        assert_eq!(
            source.label(index).is_some(),
            source.has_labels(),
            "all samples have labels, or none"
        );
        if let (Some(label), false) = (source.label(index), classes.is_empty()) {
            assert!((0..classes.len() as i64).contains(&label), "label {label} is a class");
        }
        match source.extent(index) {
            Extent::File(path) => {
                let location = source.location(index).map(|location| location.path);
                assert_eq!(location, Some(path), "the location of sample {index} names its file");
            }
            Extent::Part { path, offset, length } => {
                let end = std::fs::metadata(path).expect("its file exists").len();
                assert!(offset + length <= end, "sample {index} reaches beyond its file");
            }
            Extent::Packed { path, .. } => assert!(path.exists(), "its file exists"),
            Extent::Memory(arrays) => {
                for array in arrays {
                    let range = array.range(index);
                    assert!(range.end <= array.memory.bytes(), "sample {index} is in its memory");
                }
            }
        }
    }
}
