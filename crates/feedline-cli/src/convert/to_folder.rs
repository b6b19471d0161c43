//! Converts shards to an image folder.

use feedline_core::decode::{self, sniff};
use feedline_core::error::{Error, Kind, Result};
use feedline_core::escape;
use feedline_core::format::example::{self, List};
use feedline_core::format::{Container, tar};
use feedline_core::sample::{Location, shown};
use feedline_core::source::EXTENSIONS;
use feedline_core::source::index::{Index, Reuse};
use feedline_core::source::walk::{WalkedRecord, walk_by};
use feedline_core::sys::atomic_file::{AtomicFile, Existing};
use feedline_core::sys::file;
use feedline_core::sys::lock::Mutex;
use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::names::place;
use super::{exists, write_error};
use crate::parallel::share;
use crate::report::{Progress, counted, print_result};
use crate::shards::{cache, class_names, indices};

/// A conversion to a folder, as the user asked for it.
pub(super) struct ToFolder {
    pub(super) paths: Vec<PathBuf>,
    pub(super) container: Container,
    pub(super) target: PathBuf,
    pub(super) existing: Existing,
}

/// State that all threads share.
struct Work {
    container: Container,
    target: PathBuf,
    existing: Existing,
    classes: Vec<String>,
    /// Paths written so far, so that two records never become one file.
    written: Mutex<HashSet<PathBuf>>,
    is_over: AtomicBool,
}

/// A shard, and the number of its first record.
struct SourceShard {
    path: PathBuf,
    index: Index,
    first: u64,
}

/// An image in a record.
struct Picture<'a> {
    data: &'a [u8],
    class: Option<String>,
    name: Option<Cow<'a, [u8]>>,
}

impl ToFolder {
    pub(super) fn run(self, threads: usize) -> Result<()> {
        let is_empty = !self.target.exists()
            || file::first_entry(&self.target).is_ok_and(|first| first.is_none());
        if !is_empty && self.existing == Existing::Stays {
            return Err(exists(&self.target));
        }
        let classes = class_names(&self.paths)?;
        let made = indices(&self.paths, &self.container, &cache(), Reuse::Fitting)?;
        let mut shards = Vec::with_capacity(self.paths.len());
        let mut records = 0;
        for (path, made) in self.paths.into_iter().zip(made) {
            let index = made?.index;
            let first = records;
            records += index.len();
            shards.push(SourceShard { path, index, first });
        }
        let work = Arc::new(Work {
            container: self.container,
            target: self.target.clone(),
            existing: self.existing,
            classes,
            written: Mutex::new(HashSet::new()),
            is_over: AtomicBool::new(false),
        });
        let progress = Progress::new("writing images", records);
        let shared = Arc::clone(&work);
        let written = share(shards, threads, progress, move |_: &mut (), shard, done| {
            let mut outcome = Ok(());
            let walked = walk_by(&shard.index, &shard.path, &shared.container, &mut |seen| {
                let number = seen.number;
                let offset = Some(seen.span.start);
                outcome = shared.write(shard, seen).map_err(|error| {
                    let place = Location { path: shard.path.clone(), offset, record: Some(number) };
                    error.at(Some(place))
                });
                done.add(1);
                outcome.is_ok() && !shared.is_over.load(Ordering::Relaxed)
            });
            let outcome = walked.and(outcome);
            if outcome.is_err() {
                shared.is_over.store(true, Ordering::Relaxed);
            }
            outcome
        })?;
        written.into_iter().collect::<Result<()>>()?;
        print_result(format_args!(
            "{} of {} below {}",
            counted(records, "image", "images"),
            counted(work.folders(), "class", "classes"),
            escape::path(&self.target)
        ))
    }
}

impl Work {
    fn write(&self, shard: &SourceShard, seen: WalkedRecord<'_>) -> Result<()> {
        let payload = seen.payload.map_err(|error| {
            error.with_hint("write shards without the corrupt records: feedline verify --repair")
        })?;
        let picture = match &self.container {
            Container::Tar => in_members(payload)?,
            Container::Tfrecord { .. }
            | Container::JsonLines
            | Container::Csv { .. }
            | Container::Numbers { .. } => in_example(payload)?,
        };
        let class = picture.class.map(|class| match class.parse::<usize>() {
            Ok(number) => self.classes.get(number).cloned().unwrap_or(class),
            Err(_) => class,
        });
        let index = shard.first + seen.number;
        let name = picture.name.unwrap_or_else(|| format!("{index:08}").into_bytes().into());
        let name = with_extension(name.into_owned(), picture.data)?;
        let path = self.target.join(place(class.as_deref(), &name)?);
        if !self.written.lock().insert(path.clone()) {
            let message =
                format!("another record also has the name {:?}", path.display().to_string());
            return Err(Error::new(Kind::InvalidSource, message)
                .with_hint("rename one of the two records: they would become one file"));
        }
        self.check_folders(&path)?;
        let write = || {
            let mut atomic_file = AtomicFile::new(&path)?;
            atomic_file.add(picture.data)?;
            atomic_file.finish(self.existing)
        };
        write().map_err(|error| write_error(&path, error))
    }

    /// Refuses to write through a symbolic link, which may lead out of the target.
    fn check_folders(&self, path: &Path) -> Result<()> {
        let below = path.ancestors().skip(1).take_while(|folder| *folder != self.target);
        for folder in below {
            if file::is_link(folder) {
                let message =
                    format!("{} is a symbolic link that leads out of the target", shown(folder));
                return Err(Error::new(Kind::InvalidSource, message)
                    .with_hint("remove the link, or write to another folder"));
            }
        }
        Ok(())
    }

    /// Number of class folders that were written to.
    fn folders(&self) -> u64 {
        let written = self.written.lock();
        let folders: HashSet<_> = written
            .iter()
            .filter_map(|path| path.strip_prefix(&self.target).ok()?.components().next())
            .collect();
        folders.len() as u64
    }
}

/// Adds an image extension to the name if it has none.
fn with_extension(mut name: Vec<u8>, data: &[u8]) -> Result<Vec<u8>> {
    let last = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    let last = String::from_utf8_lossy(last).to_lowercase();
    if EXTENSIONS.contains(&last.as_str()) && name.contains(&b'.') {
        return Ok(name);
    }
    let extension = match sniff(data)? {
        decode::Format::Jpeg => ".jpg",
        decode::Format::Png => ".png",
        decode::Format::Webp => ".webp",
    };
    name.extend_from_slice(extension.as_bytes());
    Ok(name)
}

fn in_example(record: &[u8]) -> Result<Picture<'_>> {
    let features = example::features(record)?;
    let list = |key: &str| {
        let feature = features.iter().find(|feature| feature.key == key.as_bytes());
        feature.and_then(|feature| feature.steps.first())
    };
    let one = |list: &List<'_>| match list {
        List::Ints(values) if values.len() == 1 => Some(values[0].to_string()),
        List::Bytes(values) if values.len() == 1 => {
            Some(String::from_utf8_lossy(values[0]).into_owned())
        }
        List::Nothing | List::Bytes(_) | List::Floats(_) | List::Ints(_) => None,
    };
    let Some(List::Bytes(images)) = list("image_raw") else {
        let names: Vec<_> =
            features.iter().take(20).map(|each| String::from_utf8_lossy(each.key)).collect();
        let message = format!("no feature \"image_raw\"; the record has {}", names.join(", "));
        return Err(Error::new(Kind::InvalidField, message)
            .with_hint("convert reads shards with the features image_raw, label and name"));
    };
    let [data] = images[..] else {
        let message = format!("feature \"image_raw\" has {} values, not one", images.len());
        return Err(Error::new(Kind::InvalidField, message));
    };
    let name = match list("name") {
        Some(List::Bytes(names)) if names.len() == 1 => Some(Cow::Borrowed(names[0])),
        Some(_) | None => None,
    };
    Ok(Picture { data, class: list("label").and_then(one), name })
}

fn in_members(span: &[u8]) -> Result<Picture<'_>> {
    let members = tar::members(span).collect::<Result<Vec<_>>>()?;
    let is_picture =
        |extension: &str| EXTENSIONS.contains(&extension.rsplit('.').next().unwrap_or_default());
    let Some(picture) = members.iter().find(|member| is_picture(&member.extension)) else {
        let names: Vec<_> = members.iter().take(20).map(|member| &*member.extension).collect();
        let message = format!("no image; the sample has {}", names.join(", "));
        return Err(Error::new(Kind::InvalidField, message).with_hint(
            "convert reads tars with the members KEY.jpg, or another image, and KEY.cls",
        ));
    };
    let class = members.iter().find(|member| member.extension == "cls");
    let class = class.map(|member| String::from_utf8_lossy(member.data).trim().to_owned());
    let name = [picture.key(), b".", picture.extension.as_bytes()].concat();
    Ok(Picture { data: picture.data, class, name: Some(Cow::Owned(name)) })
}
