//! Verifies image files.

use feedline_core::error::{Error, Kind, Result};
use feedline_core::sample::{Extent, Location};
use feedline_core::source::Source;
use feedline_core::source::folder::Folder;
use feedline_core::sys::file::{self, Handle};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::look::{Depth, Examiner};
use super::tally::{Fault, Tally};
use crate::parallel::share;
use crate::report::Progress;

/// Files that a thread takes at a time.
const AT_ONCE: usize = 16;
/// First bytes to read: they contain most headers.
const HEAD: usize = 64 << 10;

/// An image, its index in a loader, and its class.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    path: PathBuf,
    index: Option<u64>,
    class: Option<usize>,
}

/// The images that one loader would read.
#[derive(Debug, Default)]
pub(crate) struct Images {
    pub(crate) title: String,
    images: Vec<Image>,
    classes: Vec<String>,
    /// A fault of the folder itself.
    fault: Option<Fault>,
}

impl Images {
    /// A list of files, in order.
    pub(crate) fn listed(paths: Vec<PathBuf>) -> Images {
        let numbered = paths.into_iter().zip(0..);
        let images =
            numbered.map(|(path, index)| Image { path, index: Some(index), class: None }).collect();
        Images { title: "files".into(), images, ..Images::default() }
    }

    /// Images below a folder: by class if it has class folders, otherwise sorted by name.
    pub(crate) fn below(root: &Path, found: Vec<PathBuf>) -> Images {
        if found.iter().all(|path| path.parent() == Some(root)) {
            return Images { title: "folder".into(), ..Images::listed(found) };
        }
        let title = "image folder".into();
        let folder = match Folder::images(root) {
            Ok(folder) => folder,
            Err(error) => {
                let unnumbered = |path| Image { path, index: None, class: None };
                let images = found.into_iter().map(unnumbered).collect();
                let fault = Some(Fault::of_file(root, &error));
                return Images { title, images, fault, ..Images::default() };
            }
        };
        let mut images = Vec::with_capacity(found.len());
        for index in 0..folder.len() {
            if let Extent::File(path) = folder.extent(index) {
                let class = folder.label(index).and_then(|label| usize::try_from(label).ok());
                images.push(Image { path, index: Some(index), class });
            }
        }
        let numbered: HashSet<PathBuf> = images.iter().map(|image| image.path.clone()).collect();
        let others = found.into_iter().filter(|path| !numbered.contains(path));
        images.extend(others.map(|path| Image { path, index: None, class: None }));
        Images { title, images, classes: folder.classes().to_vec(), fault: None }
    }

    pub(crate) fn len(&self) -> u64 {
        self.images.len() as u64
    }

    /// Number of images that a loader of the folder would not read.
    pub(crate) fn unnumbered(&self) -> u64 {
        self.images.iter().filter(|image| image.index.is_none()).count() as u64
    }

    /// Verifies all of them.
    pub(crate) fn verify(self, depth: Depth, threads: usize) -> Result<Tally> {
        let progress = Progress::new("reading pictures", self.len());
        let parts: Vec<Vec<Image>> = self.images.chunks(AT_ONCE).map(<[Image]>::to_vec).collect();
        let classes = self.classes;
        let tallies =
            share(parts, threads, progress, move |examiner: &mut Examiner, images, done| {
                let mut tally = Tally::default();
                for image in images {
                    if let Some(class) = image.class.and_then(|class| classes.get(class)) {
                        tally.class(class);
                    }
                    if let Err((stage, error)) = look_at(&image.path, depth, examiner, &mut tally) {
                        let place = Location::file(&image.path);
                        tally.faults.push(Fault::new(image.index, place, stage, &error));
                    }
                    done.add(1);
                }
                tally
            })?;
        let mut whole = Tally::default();
        whole.faults.extend(self.fault);
        tallies.into_iter().for_each(|tally| whole.merge(tally));
        Ok(whole)
    }
}

/// Verifies an image. An error comes with the stage in which a loader would raise it.
fn look_at(
    path: &Path,
    depth: Depth,
    examiner: &mut Examiner,
    tally: &mut Tally,
) -> std::result::Result<(), (&'static str, Error)> {
    let failed = |error| ("fetch", Error::io(Kind::Read, "reading the file", error));
    let size = Handle::open(path).and_then(|handle| handle.size());
    tally.files += 1;
    let size = size.inspect_err(|_| tally.sample(0)).map_err(failed)?;
    tally.bytes += size;
    tally.sample(size);
    if depth == Depth::Header {
        // If the header is not in the first bytes, read the whole file.
        let head = head(path).map_err(failed)?;
        if (head.len() as u64) < size && examiner.picture(&head, depth, tally).is_ok() {
            return Ok(());
        }
    }
    let bytes = file::read_bytes(path).map_err(failed)?;
    examiner.picture(&bytes, depth, tally).map_err(|error| ("worker", error))
}

fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD];
    let count = Handle::open(path)?.read_at(&mut head, 0)?;
    head.truncate(count);
    Ok(head)
}
