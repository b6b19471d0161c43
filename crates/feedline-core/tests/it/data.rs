//! Small data sets in temporary folders.

use feedline_core::config::Settings;
use feedline_core::loader::{Loader, given};
use feedline_core::sample::{Batch, Column};
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::testing::photos::photo_jpeg;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Photographs of different sizes in two classes; those whose number is in `bad` are truncated.
pub(crate) fn photographs(count: usize, bad: &[usize]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..count {
        let class = folder.path().join(["cat", "dog"][number * 2 / count]);
        fs::create_dir_all(&class).unwrap();
        let mut bytes = photo_jpeg(number as u64, 40 + number % 7 * 9, 64 - number % 5 * 6, 85);
        if bad.contains(&number) {
            bytes.truncate(bytes.len() - 40);
        }
        fs::write(class.join(format!("{number:04}.jpg")), bytes).unwrap();
    }
    folder
}

pub(crate) fn loader(source: Arc<dyn Source>, config: &str) -> Loader {
    let settings = Settings::parse(config, &given(&*source)).unwrap();
    Loader::new(source, settings).unwrap()
}

pub(crate) fn folder_loader(folder: &Path, config: &str) -> Loader {
    loader(Arc::new(Folder::images(folder).unwrap()), config)
}

/// The content of a batch, for comparison.
pub(crate) fn content(batch: &Batch) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let column = |(name, column): &(Arc<str>, Column)| match column {
        Column::Array { shape, memory, .. } => (name.to_string(), shape.clone(), memory.to_vec()),
        Column::Bytes(list) => (
            name.to_string(),
            vec![list.len()],
            list.iter().flat_map(|bytes| bytes.to_vec()).collect(),
        ),
        Column::Text(list) | Column::Json(list) => {
            (name.to_string(), vec![list.len()], list.concat().into_bytes())
        }
    };
    batch.columns.iter().map(column).collect()
}

/// The indices of the samples of each batch.
pub(crate) fn indices(batches: &[Batch]) -> Vec<Vec<u64>> {
    let of = |batch: &Batch| batch.tickets.iter().map(|ticket| ticket.index).collect();
    batches.iter().map(of).collect()
}
