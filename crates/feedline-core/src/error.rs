//! Everything that can go wrong: one table of kinds, one error type.
//!
//! An error says what happened, where, and what to do. Each kind has a hint, which a more specific one may replace, and
//! an example that the tests print.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::escape;
use crate::sample::Location;

/// A result of Feedline.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! kinds {
    ($($kind:ident {
        name: $name:literal, code: $code:literal, hint: $hint:literal, example: $example:literal
    },)*) => {
        /// The kind of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[doc = $example] $kind,)*
        }

        impl Kind {
            /// All kinds, in the order of the table.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// Its name, also that of the Python class.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name),* }
            }

            /// Its code, which never changes: FL1xx for settings and sources, FL2xx for samples, FL3xx for the machine,
            /// FL4xx for workers, FL5xx for wrong use and bugs.
            pub fn code(self) -> &'static str {
                match self { $(Kind::$kind => $code),* }
            }

            /// What usually helps.
            pub fn hint(self) -> &'static str {
                match self { $(Kind::$kind => $hint),* }
            }

            /// An example message of this kind.
            pub fn example(self) -> &'static str {
                match self { $(Kind::$kind => $example),* }
            }
        }
    };
}

kinds! {
    InvalidArgument {
        name: "InvalidArgumentError",
        code: "FL101",
        hint: "see help(feedline.Pipeline)",
        example: "batch size must be at least 1, got 0"
    },
    InvalidSource {
        name: "InvalidSourceError",
        code: "FL102",
        hint: "look at the folder with ls; each class is a sub-folder with images in it",
        example: "class folder \"cat\" has no images"
    },
    SourceUnavailable {
        name: "SourceUnavailableError",
        code: "FL105",
        hint: "bring the mount back and resume; wait longer with faults=FaultPolicy(patience=...)",
        example: "/mnt/data has been unavailable for 300 s"
    },
    Read {
        name: "ReadError",
        code: "FL201",
        hint: "check that the file is there and can be read; skip it with faults=FaultPolicy(action=\"skip\")",
        example: "permission denied (os error 13)"
    },
    UnknownFormat {
        name: "UnknownFormatError",
        code: "FL202",
        hint: "JPEG, PNG and WebP are decoded; skip others with faults=FaultPolicy(action=\"skip\")",
        example: "not a JPEG, PNG or WebP image: the first bytes are 47 49 46 38"
    },
    CorruptImage {
        name: "CorruptImageError",
        code: "FL203",
        hint: "replace the file, or skip it with faults=FaultPolicy(action=\"skip\")",
        example: "the image is truncated: premature end of JPEG file"
    },
    TooLarge {
        name: "TooLargeError",
        code: "FL204",
        hint: "raise the limit with decode(max_pixels=...) if the image is genuine",
        example: "65500 x 65500 pixels are more than the limit of 178956970"
    },
    TooSmall {
        name: "TooSmallError",
        code: "FL205",
        hint: "resize before random_crop, or give random_crop a padding",
        example: "a crop of 224 x 224 does not fit into an image of 100 x 80"
    },
    ShapeMismatch {
        name: "ShapeMismatchError",
        code: "FL206",
        hint: "resize or crop to one size, or ask for batch(..., pad=True)",
        example: "image of sample 7 has shape [10, 20, 3], that of sample 3 in the same batch [16, 16, 3]"
    },
    CodecPanic {
        name: "CodecPanicError",
        code: "FL207",
        hint: "skip the sample with faults=FaultPolicy(action=\"skip\") and report the file as a bug of Feedline",
        example: "the decoder panicked: index out of bounds"
    },
    DeadlineExceeded {
        name: "DeadlineExceededError",
        code: "FL208",
        hint: "give samples more time with deadline=, or skip this one with faults=FaultPolicy(action=\"skip\")",
        example: "sample 7 took longer than its deadline of 30 s"
    },
    TooManyFaults {
        name: "TooManyFaultsError",
        code: "FL209",
        hint: "look at the causes above; if they are expected, allow more with faults=FaultPolicy(limit=...): a count, a share below 1.0, or None for any number",
        example: "11 faults are more than the limit of 10"
    },
    NoReplacement {
        name: "NoReplacementError",
        code: "FL210",
        hint: "use faults=FaultPolicy(action=\"skip\"): too many samples are bad to find others in their place",
        example: "8 samples tried in place of sample 12 were bad as well"
    },
    CorruptRecord {
        name: "CorruptRecordError",
        code: "FL211",
        hint: "skip it with faults=FaultPolicy(action=\"skip\"), or write shards without it: feedline verify --repair",
        example: "record 17 is corrupt: checksum mismatch"
    },
    InvalidField {
        name: "InvalidFieldError",
        code: "FL212",
        hint: "look at the record with feedline show FILE:NUMBER, and at what parse() asks for",
        example: "feature \"label\" holds 2 values of int64, expected 1 of float32"
    },
    UnsafeFormat {
        name: "UnsafeFormatError",
        code: "FL213",
        hint: "store it in a format that is only data, such as .json or .npy",
        example: "member \"a.pkl\" is a pickle, which runs code when it is read"
    },
    TooManyOpenFiles {
        name: "TooManyOpenFilesError",
        code: "FL301",
        hint: "raise the limit with ulimit -n, or close files elsewhere in the program",
        example: "the system has no descriptor left, not even for one file"
    },
    OutOfMemory {
        name: "OutOfMemoryError",
        code: "FL302",
        hint: "lower memory=, prefetch= or the batch size",
        example: "the system refused 38535168 bytes for a batch"
    },
    OutOfThreads {
        name: "OutOfThreadsError",
        code: "FL303",
        hint: "raise the limit with ulimit -u, or lower threads=",
        example: "the system refused the first thread: resource temporarily unavailable"
    },
    DescriptorsClosed {
        name: "DescriptorsClosedError",
        code: "FL304",
        hint: "look for os.closerange, or a library that closes all descriptors, and make the loader after it",
        example: "descriptors that connect this process with its workers were closed by other code in it"
    },
    UsedAfterFork {
        name: "UsedAfterForkError",
        code: "FL501",
        hint: "make the loader in the process that uses it, or start processes with the spawn method",
        example: "the loader was created in process 10 and used in its fork 11, where its threads do not exist"
    },
    Closed {
        name: "ClosedError",
        code: "FL502",
        hint: "make a new loader; one that was closed cannot be used again",
        example: "the loader is closed"
    },
    NotPicklable {
        name: "NotPicklableError",
        code: "FL104",
        hint: "make it when it is first used in the worker, or define __getstate__ without it",
        example: "dataset.transform.fn cannot be pickled: it is a _thread.lock (cannot pickle '_thread.lock' object)"
    },
    WorkerDied {
        name: "WorkerDiedError",
        code: "FL401",
        hint: "set on_death=\"replace\" (the default) to restart dead workers; skip a sample that kills with faults=FaultPolicy(action=\"skip\")",
        example: "worker 3 (pid 4711) was killed by SIGKILL at sample 48213, offset 5 of batch 1506"
    },
    TooManyDeaths {
        name: "TooManyDeathsError",
        code: "FL402",
        hint: "look at the samples named above; allow more deaths with max_deaths= and death_window=",
        example: "too many workers died:\n  worker 0 (pid 4711) was killed by SIGSEGV at sample 12, offset 0 of batch 3"
    },
    WorkerNotStarted {
        name: "WorkerNotStartedError",
        code: "FL403",
        hint: "lower num_workers, or raise the limit of processes with ulimit -u",
        example: "the system refused a process for worker 5: Resource temporarily unavailable"
    },
    StateMismatch {
        name: "StateMismatchError",
        code: "FL103",
        hint: "load it with the same data and settings, or with strict=False if you know that it fits",
        example: "the state does not fit this loader: number of samples: 1000 in the state, 900 here"
    },
    Internal {
        name: "InternalError",
        code: "FL503",
        hint: "this is a bug of Feedline: report it with this message",
        example: "99 samples were delivered and 0 skipped, but 100 were due"
    },
}

impl Kind {
    /// The kind with this name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether it is a fault of one sample, so that skipping the sample helps. It is not if the machine has run out of
    /// something.
    pub(crate) fn is_of_sample(self) -> bool {
        match self {
            Kind::Read
            | Kind::UnknownFormat
            | Kind::CorruptImage
            | Kind::TooLarge
            | Kind::TooSmall
            | Kind::ShapeMismatch
            | Kind::CodecPanic
            | Kind::DeadlineExceeded
            | Kind::CorruptRecord
            | Kind::InvalidField
            | Kind::UnsafeFormat
            // For a sample that kills its worker.
            | Kind::WorkerDied => true,
            Kind::InvalidArgument
            | Kind::InvalidSource
            | Kind::SourceUnavailable
            | Kind::TooManyFaults
            | Kind::NoReplacement
            | Kind::TooManyOpenFiles
            | Kind::DescriptorsClosed
            | Kind::OutOfMemory
            | Kind::OutOfThreads
            | Kind::UsedAfterFork
            | Kind::Closed
            | Kind::NotPicklable
            | Kind::TooManyDeaths
            | Kind::WorkerNotStarted
            | Kind::StateMismatch
            | Kind::Internal => false,
        }
    }
}

/// What happened, where, and what to do.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    message: String,
    location: Option<Location>,
    index: Option<u64>,
    epoch: Option<u64>,
    stage: Option<&'static str>,
    hint: Option<Cow<'static, str>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind. The message is lowercase, without a full stop.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            location: None,
            index: None,
            epoch: None,
            stage: None,
            hint: None,
            source: None,
        }))
    }

    /// A system error while `doing` something.
    pub fn io(kind: Kind, doing: impl fmt::Display, error: io::Error) -> Error {
        let mut made = Error::new(kind, format!("{doing}: {}", lowered(&error.to_string())));
        made.0.source = Some(Box::new(error));
        made
    }

    /// Replaces the hint of the kind by a more specific one.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// Sets the location of the bytes.
    #[must_use]
    pub fn at(mut self, location: Option<Location>) -> Error {
        self.0.location = location.or(self.0.location);
        self
    }

    /// Sets the sample, the epoch in which it was made, and the stage that failed.
    #[must_use]
    pub(crate) fn of_sample(mut self, index: u64, epoch: u64, stage: &'static str) -> Error {
        self.0.index = Some(index);
        self.0.epoch = Some(epoch);
        self.0.stage = Some(stage);
        self
    }

    /// Which kind it is.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The message, without location and hint.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The location of the bytes.
    pub fn location(&self) -> Option<&Location> {
        self.0.location.as_ref()
    }

    /// The index of the sample in the source.
    pub fn index(&self) -> Option<u64> {
        self.0.index
    }

    /// The epoch in which the sample was made.
    pub fn epoch(&self) -> Option<u64> {
        self.0.epoch
    }

    /// The stage in which the sample failed.
    pub fn stage(&self) -> Option<&'static str> {
        self.0.stage
    }

    /// The hint.
    pub fn hint(&self) -> &str {
        self.0.hint.as_deref().unwrap_or(self.0.kind.hint())
    }

    /// The errno of the system error that caused it.
    pub fn os_error(&self) -> Option<i32> {
        self.0.source.as_ref()?.downcast_ref::<io::Error>()?.raw_os_error()
    }
}

/// Lowercases the first letter, to continue a sentence.
pub(crate) fn lowered(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let (Some(index), Some(stage), true) =
            (inner.index, inner.stage, inner.kind.is_of_sample())
        {
            write!(formatter, "sample {index} failed in {stage}: ")?;
        }
        write!(formatter, "{}", escape::lines(&inner.message))?;
        if let Some(location) = &inner.location {
            write!(formatter, "\n  in    {location}")?;
        }
        write!(formatter, "\nhint: {}", self.hint())?;
        write!(formatter, "\nsee: feedline explain {}", inner.kind.code())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_unique_name_a_hint_and_an_example() {
        let mut names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
        let mut codes: Vec<_> = Kind::ALL.iter().map(|kind| kind.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Kind::ALL.len());
        assert!(codes.iter().all(|code| code.starts_with("FL") && code.len() == 5), "{codes:?}");
        for kind in Kind::ALL {
            for text in [kind.hint(), kind.example()] {
                assert!(text.len() > 10 && !text.ends_with('.'), "{kind:?}: {text:?}");
            }
            let first = kind.example().chars().next().unwrap();
            assert!(!first.is_uppercase(), "{kind:?}: {}", kind.example());
        }
    }

    #[test]
    fn the_table_of_kinds_as_users_see_it() {
        let table: Vec<_> = Kind::ALL
            .iter()
            .map(|kind| format!("{}: {}", kind.name(), Error::new(*kind, kind.example())))
            .collect();
        insta::assert_snapshot!(table.join("\n\n"));
    }

    #[test]
    fn an_error_names_sample_stage_place_cause_and_hint() {
        let error = Error::new(Kind::CorruptImage, "the image is truncated")
            .at(Some(Location::file("data/cat/1.jpg")))
            .of_sample(48213, 0, "worker");
        insta::assert_snapshot!(error);
    }
}
