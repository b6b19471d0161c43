//! What every source must keep, as a function that tests call.

use crate::sample::Extent;
use crate::source::Source;

/// Checks that a source keeps its word.
///
/// # Panics
/// If it does not, saying how.
pub fn check_source(source: &dyn Source) {
    let samples = source.len();
    assert!(samples > 0, "a source with no samples must refuse to be made");
    assert_eq!(source.len(), samples, "the number of samples stays");
    assert_eq!(source.fingerprint(), source.fingerprint(), "the fingerprint stays");
    let classes = source.classes();
    for index in (0..samples).step_by((samples as usize / 100).max(1)).chain([samples - 1]) {
        assert_eq!(source.extent(index), source.extent(index), "sample {index} stays where it is");
        assert_eq!(source.label(index), source.label(index), "the label of sample {index} stays");
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
                assert_eq!(location, Some(path), "people are told where sample {index} lies");
            }
            Extent::Part { path, offset, length } => {
                let end = std::fs::metadata(path).expect("its file is there").len();
                assert!(offset + length <= end, "sample {index} reaches beyond its file");
            }
            Extent::Packed { path, .. } => assert!(path.exists(), "its file is there"),
            Extent::Memory(arrays) => {
                for array in arrays {
                    let range = array.range(index);
                    assert!(range.end <= array.memory.bytes(), "sample {index} is in its memory");
                }
            }
        }
    }
}
