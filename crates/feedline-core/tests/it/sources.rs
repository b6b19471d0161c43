//! Sources keep the contract, and report clearly what is wrong with a data set.

use feedline_core::error::{Error, Kind};
use feedline_core::format::{Container, tfrecord};
use feedline_core::sample::{BorrowedArray, Dtype, Extent, Field};
use feedline_core::source::Source;
use feedline_core::source::files::Files;
use feedline_core::source::folder::Folder;
use feedline_core::source::index::IndexStorage;
use feedline_core::source::memory::Arrays;
use feedline_core::source::numbers::{Numbered, Numbers};
use feedline_core::source::records::Records;
use feedline_core::source::zip::Zip;
use feedline_core::sys::slab::Borrowed;
use feedline_core::testing::contracts::check_source;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::photographs;

#[test]
fn every_source_keeps_the_contract() {
    let folder = photographs(20, &[]);
    check_source(&Folder::images(folder.path()).unwrap());
    let pattern = folder.path().join("**/*.jpg");
    check_source(&Files::glob(pattern.to_str().unwrap(), None).unwrap());
    let paths = vec!["b".into(), "a".into()];
    check_source(&Files::list(&paths, Some(vec![4, -2])).unwrap());
    let field = Field::fixed("x", Dtype::Float32, &[3]);
    let memory = Arc::new(Borrowed::of(vec![0; 12 * 7]));
    let arrays =
        Arrays::new(vec![BorrowedArray { field, memory, stride: 12, first: 0 }], 7).unwrap();
    check_source(&arrays);
    let shards = shards(folder.path());
    let records = Records::new(
        shards.clone(),
        Container::Tfrecord { check: true },
        &IndexStorage::Nowhere,
        None,
        &mut |_| true,
    );
    let records = Arc::new(records.unwrap());
    check_source(&*records);
    check_source(&Zip::new(records, &arrays).unwrap());
    let numbered = Numbered { path: shards[0].clone(), start: 4, count: Some(9) };
    check_source(&Numbers::new(&[numbered], Dtype::Uint16, 4, 2).unwrap());
}

/// Two shards with three and four records.
fn shards(folder: &Path) -> Vec<PathBuf> {
    let shard = |records: &[&str]| {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| tfrecord::write(record.as_bytes(), &mut bytes));
        let path = folder.join(format!("{}.tfrecord", records.len()));
        fs::write(&path, bytes).unwrap();
        path
    };
    vec![shard(&["one", "two", "three"]), shard(&["a", "", "b", "c"])]
}

#[test]
fn an_array_with_too_little_memory_is_refused() {
    let field = Field::fixed("x", Dtype::Float32, &[3]);
    let memory = Arc::new(Borrowed::of(vec![0; 12 * 7 - 1]));
    assert!(Arrays::new(vec![BorrowedArray { field, memory, stride: 12, first: 0 }], 7).is_err());
}

fn touch(folder: &Path, names: &[&str]) {
    for name in names {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }
}

fn names(source: &dyn Source, root: &Path) -> Vec<String> {
    let name = |index| match source.extent(index) {
        Extent::File(path) => path.strip_prefix(root).unwrap().display().to_string(),
        Extent::Part { .. } | Extent::Packed { .. } | Extent::Memory(_) => panic!("a file"),
    };
    (0..source.len()).map(name).collect()
}

#[test]
fn folders_are_sorted_by_path_and_files_by_name() {
    let folder = tempfile::tempdir().unwrap();
    touch(
        folder.path(),
        &[
            "b/z.jpg",
            "b/b/1.png",
            "b/b-c/2.JPEG",
            "a/10.jpg",
            "a/9.jpg",
            "a/.hidden.jpg",
            "a/notes.txt",
            "a/.cache/3.jpg",
            ".git/4.jpg",
            "top.jpg",
            "b/b/deep/3.jpg",
        ],
    );
    let source = Folder::images(folder.path()).unwrap();
    let expected =
        ["a/10.jpg", "a/9.jpg", "b/z.jpg", "b/b/1.png", "b/b-c/2.JPEG", "b/b/deep/3.jpg"];
    assert_eq!(names(&source, folder.path()), expected);
    assert_eq!(&*source.classes(), ["a", "b"]);
    assert_eq!(
        (0..6).map(|index| source.label(index).unwrap()).collect::<Vec<_>>(),
        [0, 0, 1, 1, 1, 1]
    );
}

fn refusal(make: impl FnOnce(&Path)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path());
    let error = Folder::images(folder.path()).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidSource);
    error
}

#[test]
fn errors_of_a_folder_are_reported() {
    let missing = Folder::images(Path::new("/no/such/folder")).map(drop).unwrap_err();
    assert!(missing.message().contains("/no/such/folder"), "{missing}");
    assert!(refusal(|_| ()).message().contains("no class folders"));
    let empty = refusal(|root| {
        touch(root, &["a/1.jpg"]);
        fs::create_dir(root.join("b")).unwrap();
    });
    assert!(empty.message().contains("/b\" has no images"), "{empty}");
    let broken = refusal(|root| {
        touch(root, &["a/1.jpg"]);
        symlink("nowhere.jpg", root.join("a/2.jpg")).unwrap();
    });
    assert!(broken.to_string().contains("a/2.jpg"), "{broken}");
    let cycle = refusal(|root| {
        touch(root, &["a/1.jpg"]);
        symlink("..", root.join("a/up")).unwrap();
    });
    assert!(cycle.message().contains("parent folders"), "{cycle}");
}

#[test]
fn empty_lists_and_patterns_without_matches_are_refused() {
    assert!(Files::list(&[], None).is_err());
    let labels = Files::list(&["a".into()], Some(vec![1, 2])).map(drop).unwrap_err();
    assert_eq!(labels.message(), "2 labels for 1 files");
    let none = Files::glob("/no/such/*.jpg", None).map(drop).unwrap_err();
    assert!(none.message().contains("no file matches"), "{none}");
    assert!(Files::glob("a/**b", None).is_err());
}
