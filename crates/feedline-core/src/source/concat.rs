//! Concatenates sources.

use std::path::PathBuf;
use std::sync::Arc;

use super::index::UnsavedIndex;
use super::{Contents, Source};
use crate::error::{Error, Kind, Result};
use crate::fingerprint::Fingerprint;
use crate::format::Packing;
use crate::sample::{BorrowedArray, Extent, Location};
use crate::sys::file::Identity;

/// Concatenated sources whose samples have the same fields.
pub struct Concat {
    parts: Vec<ConcatPart>,
    contents: Option<Contents>,
    classes: Arc<[String]>,
}

struct ConcatPart {
    source: Arc<dyn Source>,
    /// Index of its first sample.
    first: u64,
    /// Its arrays, whose rows count from the first sample of all parts.
    arrays: Vec<BorrowedArray>,
}

impl Concat {
    /// Refuses sources that provide different fields.
    pub fn new(sources: Vec<Arc<dyn Source>>) -> Result<Concat> {
        let sources: Vec<Arc<dyn Source>> = sources
            .into_iter()
            .flat_map(|source| source.parts().unwrap_or_else(|| vec![source]))
            .collect();
        let Some(first) = sources.iter().position(|source| !source.is_empty()) else {
            return Err(Error::new(Kind::InvalidSource, "concat: no source has samples")
                .with_hint("give at least one"));
        };
        let one = &sources[first];
        // The fields of a source without samples do not matter.
        let others = sources.iter().enumerate().filter(|(_, source)| !source.is_empty());
        for (number, other) in others {
            if !other.beside().is_empty() {
                let message = format!("concat: source {number} has arrays beside its samples");
                return Err(Error::new(Kind::InvalidSource, message)
                    .with_hint("call concat() first, then zip() with arrays for all samples"));
            }
            let (ours, theirs) = (described(&**one), described(&**other));
            if ours != theirs {
                let message =
                    format!("concat: source {first} has {ours}, but source {number} has {theirs}");
                return Err(Error::new(Kind::InvalidSource, message)
                    .with_hint("give sources with the same fields"));
            }
            if one.classes() != other.classes() {
                let message = format!(
                    "concat: the labels of source {first} are {:?}, but those of source {number} are {:?}",
                    one.classes(),
                    other.classes()
                );
                return Err(Error::new(Kind::InvalidSource, message)
                    .with_hint("the same label must mean the same class in all sources"));
            }
        }
        let is_packed = sources
            .iter()
            .any(|source| source.contents().is_some_and(|contents| contents.is_packed));
        let contents = one.contents().map(|contents| Contents { is_packed, ..contents.clone() });
        let classes = one.classes();
        let mut first = 0;
        let mut parts = Vec::with_capacity(sources.len());
        for source in sources {
            let arrays = arrays(&*source)
                .iter()
                .map(|array| BorrowedArray { first: array.first + first, ..array.clone() })
                .collect();
            let samples = source.len();
            parts.push(ConcatPart { source, first, arrays });
            first += samples;
        }
        Ok(Concat { parts, contents, classes })
    }

    /// The part of a sample, and its index there.
    fn place(&self, index: u64) -> (&ConcatPart, u64) {
        let part = &self.parts[self.parts.partition_point(|part| part.first <= index) - 1];
        (part, index - part.first)
    }
}

fn arrays(source: &dyn Source) -> &[BorrowedArray] {
    if source.is_empty() {
        return &[];
    }
    match source.extent(0) {
        Extent::Memory(arrays) => arrays,
        Extent::File(_) | Extent::Part { .. } | Extent::Packed { .. } => &[],
    }
}

/// A description of a source, for comparison and for messages.
fn described(source: &dyn Source) -> String {
    let arrays: Vec<_> = arrays(source)
        .iter()
        .map(|array| format!("{:?} {}", array.field.name, array.field.kind.describe()))
        .collect();
    let labels = if source.has_labels() { " with labels" } else { "" };
    match source.contents() {
        Some(contents) => {
            let fields: Vec<_> =
                contents.guessed.iter().map(|wanted| format!("{wanted:?}")).collect();
            format!("records of {:?} {}", contents.container, fields.join(", "))
        }
        None if arrays.is_empty() => format!("files{labels}"),
        None => format!("arrays {}{labels}", arrays.join(", ")),
    }
}

impl Source for Concat {
    fn kind(&self) -> &'static str {
        "concat"
    }

    fn len(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.first + part.source.len())
    }

    fn parts(&self) -> Option<Vec<Arc<dyn Source>>> {
        Some(self.parts.iter().map(|part| Arc::clone(&part.source)).collect())
    }

    fn extent(&self, index: u64) -> Extent<'_> {
        let (part, own) = self.place(index);
        match part.source.extent(own) {
            Extent::Memory(_) => Extent::Memory(&part.arrays),
            other @ (Extent::File(_) | Extent::Part { .. } | Extent::Packed { .. }) => other,
        }
    }

    fn corruption(&self, index: u64) -> Option<String> {
        let (part, own) = self.place(index);
        part.source.corruption(own)
    }

    fn contents(&self) -> Option<&Contents> {
        self.contents.as_ref()
    }

    fn packing(&self, index: u64) -> Packing {
        let (part, own) = self.place(index);
        part.source.packing(own)
    }

    fn mean_bytes(&self) -> u64 {
        let bytes = |part: &ConcatPart| {
            u128::from(part.source.mean_bytes()) * u128::from(part.source.len())
        };
        let all: u128 = self.parts.iter().map(bytes).sum();
        (all / u128::from(self.len().max(1))) as u64
    }

    fn label(&self, index: u64) -> Option<i64> {
        let (part, own) = self.place(index);
        part.source.label(own)
    }

    fn has_labels(&self) -> bool {
        self.parts.iter().any(|part| part.source.has_labels())
    }

    fn classes(&self) -> Arc<[String]> {
        Arc::clone(&self.classes)
    }

    fn shards(&self) -> Vec<u64> {
        self.parts.iter().flat_map(|part| part.source.shards()).collect()
    }

    fn known_files(&self) -> Vec<(PathBuf, Identity)> {
        self.parts.iter().flat_map(|part| part.source.known_files()).collect()
    }

    fn empty_shards(&self) -> Vec<PathBuf> {
        self.parts.iter().flat_map(|part| part.source.empty_shards()).collect()
    }

    fn unsaved_indices(&self) -> Vec<UnsavedIndex> {
        self.parts.iter().flat_map(|part| part.source.unsaved_indices()).collect()
    }

    fn fingerprint(&self) -> Fingerprint {
        let parts: Vec<_> =
            self.parts.iter().map(|part| part.source.fingerprint().in_hex()).collect();
        Fingerprint::of(parts.iter().map(String::as_bytes))
    }

    fn root(&self) -> Option<PathBuf> {
        let mut roots = self.parts.iter().map(|part| part.source.root());
        let mut common = roots.next()??;
        for root in roots {
            let root = root?;
            while !root.starts_with(&common) && common.pop() {}
        }
        Some(common)
    }

    fn location(&self, index: u64) -> Option<Location> {
        let (part, own) = self.place(index);
        part.source.location(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Dtype, Field};
    use crate::source::files::Files;
    use crate::source::memory::Arrays;
    use crate::sys::slab::Borrowed;

    fn numbers(name: &str, values: &[i64]) -> Arc<dyn Source> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let field = Field::fixed(name, Dtype::Int64, &[]);
        let array =
            BorrowedArray { field, memory: Arc::new(Borrowed::of(bytes)), stride: 8, first: 0 };
        Arc::new(Arrays::new(vec![array], values.len() as u64).unwrap())
    }

    fn files(names: &[&str], labels: Option<Vec<i64>>) -> Arc<dyn Source> {
        let paths: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
        Arc::new(Files::list(&paths, labels).unwrap())
    }

    fn value(source: &dyn Source, index: u64) -> i64 {
        let Extent::Memory(arrays) = source.extent(index) else { panic!("an array") };
        let mut bytes = [0; 8];
        arrays[0].memory.copy(arrays[0].range(index).start, &mut bytes);
        i64::from_ne_bytes(bytes)
    }

    #[test]
    fn samples_of_all_sources_are_in_order() {
        let inner = Concat::new(vec![numbers("x", &[5, 6]), numbers("x", &[7])]).unwrap();
        let parts = vec![numbers("x", &[1, 2, 3]), numbers("x", &[]), Arc::new(inner)];
        let all = Concat::new(parts).unwrap();
        let found: Vec<_> = (0..all.len()).map(|index| value(&all, index)).collect();
        assert_eq!(found, [1, 2, 3, 5, 6, 7]);
        assert_eq!(all.shards(), [3, 0, 2, 1]);
    }

    #[test]
    fn files_keep_their_place_and_label() {
        let parts = [files(&["a/1", "a/2"], Some(vec![4, 5])), files(&["b/1"], Some(vec![6]))];
        let all = Concat::new(parts.to_vec()).unwrap();
        assert_eq!((0..3).map(|index| all.label(index).unwrap()).collect::<Vec<_>>(), [4, 5, 6]);
        assert!(all.location(2).unwrap().path.ends_with("b/1"));
        assert_ne!(all.fingerprint(), Concat::new(parts[..1].to_vec()).unwrap().fingerprint());
    }

    #[test]
    fn sources_that_differ_are_refused_with_the_difference() {
        let refused = |parts: Vec<Arc<dyn Source>>| {
            let error = Concat::new(parts).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidSource);
            error.to_string()
        };
        let labelled = files(&["a"], Some(vec![1]));
        let mixed: Arc<dyn Source> = Arc::new(
            crate::source::zip::Zip::new(files(&["a"], None), &*numbers("z", &[1])).unwrap(),
        );
        let messages = [
            refused(vec![]),
            refused(vec![numbers("x", &[1]), numbers("y", &[1])]),
            refused(vec![numbers("x", &[1]), files(&["a"], None)]),
            refused(vec![files(&["a"], None), files(&["b"], None), labelled]),
            refused(vec![files(&["a"], None), mixed]),
        ];
        insta::assert_snapshot!(messages.join("\n\n"));
    }
}
