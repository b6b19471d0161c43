//! What a fault looks like: the names of its classes and the number of the system's error. Native errors
//! look like what Python would raise in their place, so that one policy fits both.

use rustix::io::Errno;

use crate::error::{Error, Kind};

/// What a fault looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symptom {
    /// The names of its classes, the most particular first: "json.decoder.JSONDecodeError",
    /// "ValueError", "Exception". Python's own have no module before them, nor have Feedline's.
    pub names: Vec<String>,
    /// The number of the system's error behind it.
    pub os_error: Option<i32>,
}

/// Errors of the system that may be gone the next time.
const PASSING: &[Errno] = &[
    Errno::IO,
    Errno::AGAIN,
    Errno::INTR,
    Errno::BUSY,
    Errno::TIMEDOUT,
    Errno::STALE,
    Errno::NOTCONN,
    Errno::REMOTEIO,
    Errno::CONNABORTED,
    Errno::CONNREFUSED,
    Errno::CONNRESET,
    Errno::NETDOWN,
    Errno::NETRESET,
    Errno::NETUNREACH,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::PIPE,
];

/// Errors that a file gives when the file system it lies on is gone.
const VANISHED: &[Errno] = &[
    Errno::NOENT,
    Errno::NOTDIR,
    Errno::ACCESS,
    Errno::PERM,
    Errno::NXIO,
    Errno::NODEV,
    Errno::NOMEDIUM,
    Errno::SHUTDOWN,
];

/// The machine is short of something that all samples need: leaving one out does not help.
const SHORTAGES: &[Errno] = &[Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];

/// Classes that say the same. A front adds Feedline's own to what it knows by its message alone, such
/// as a RuntimeError of torch's allocator.
const SHORTAGE_NAMES: &[&str] =
    &["MemoryError", "OutOfMemoryError", "TooManyOpenFilesError", "OutOfThreadsError"];

/// Classes that may be gone the next time, whatever their number.
const PASSING_NAMES: &[&str] = &[
    "TimeoutError",
    "ConnectionError",
    "BlockingIOError",
    "InterruptedError",
    "DeadlineExceededError",
];

impl Symptom {
    /// Of an error of the core.
    pub fn of(error: &Error) -> Symptom {
        let os_error = error.os_error();
        let kind = error.kind();
        let mut names = vec![kind.name()];
        if kind == Kind::Read {
            names.extend(os_error.map_or(&[][..], python_classes));
            names.push("OSError");
        }
        names.extend(["FeedlineError", "Exception"]);
        Symptom { names: names.into_iter().map(str::to_owned).collect(), os_error }
    }

    /// Whether one of its classes has that name. A name without a module fits to classes of any module.
    pub fn is_a(&self, name: &str) -> bool {
        self.names.iter().any(|class| fits(class, name))
    }

    /// Whether it may be gone the next time.
    pub fn is_passing(&self) -> bool {
        if PASSING_NAMES.iter().any(|name| self.names.iter().any(|class| class == name)) {
            return true;
        }
        match self.os_error {
            Some(number) => PASSING.iter().any(|errno| errno.raw_os_error() == number),
            // Libraries for the network raise an OSError without a number. So does Pillow for a file
            // that is no picture, which it will not become.
            None => {
                let is_lasting = |class: &String| {
                    matches!(class.as_str(), "ReadError" | "SourceUnavailableError")
                        || class.starts_with("PIL.")
                };
                self.names.iter().any(|class| class == "OSError")
                    && !self.names.iter().any(is_lasting)
            }
        }
    }

    /// Whether it may be the source that is unavailable, and not this sample that is bad. It is surely so
    /// where a probe of the source's root fails as well.
    pub fn may_be_of_source(&self) -> bool {
        let vanished = |number| VANISHED.iter().any(|errno| errno.raw_os_error() == number);
        self.is_passing_on_disk() || self.os_error.is_some_and(vanished)
    }

    /// Whether the system has an error that comes of the source, though its root answers.
    pub fn is_passing_on_disk(&self) -> bool {
        self.os_error
            .is_some_and(|number| PASSING.iter().any(|errno| errno.raw_os_error() == number))
    }

    /// Whether the machine is short of something.
    pub fn is_shortage(&self) -> bool {
        self.names.iter().any(|class| SHORTAGE_NAMES.contains(&class.as_str()))
            || self
                .os_error
                .is_some_and(|number| SHORTAGES.iter().any(|errno| errno.raw_os_error() == number))
    }

    /// Whether it is no error but a wish to stop, such as KeyboardInterrupt.
    pub fn is_a_wish_to_stop(&self) -> bool {
        self.names.iter().any(|class| class == "BaseException")
            && !self.names.iter().any(|class| class == "Exception")
    }
}

/// Whether a class, with its module, is meant by a name.
pub(super) fn fits(class: &str, name: &str) -> bool {
    class == name || (!name.contains('.') && class.rsplit('.').next() == Some(name))
}

/// The classes that Python raises for a number, below OSError.
fn python_classes(number: i32) -> &'static [&'static str] {
    match Errno::from_raw_os_error(number) {
        Errno::AGAIN | Errno::ALREADY | Errno::INPROGRESS => &["BlockingIOError"],
        Errno::CHILD => &["ChildProcessError"],
        Errno::PIPE | Errno::SHUTDOWN => &["BrokenPipeError", "ConnectionError"],
        Errno::CONNABORTED => &["ConnectionAbortedError", "ConnectionError"],
        Errno::CONNREFUSED => &["ConnectionRefusedError", "ConnectionError"],
        Errno::CONNRESET => &["ConnectionResetError", "ConnectionError"],
        Errno::EXIST => &["FileExistsError"],
        Errno::NOENT => &["FileNotFoundError"],
        Errno::INTR => &["InterruptedError"],
        Errno::ISDIR => &["IsADirectoryError"],
        Errno::NOTDIR => &["NotADirectoryError"],
        Errno::ACCESS | Errno::PERM => &["PermissionError"],
        Errno::SRCH => &["ProcessLookupError"],
        Errno::TIMEDOUT => &["TimeoutError"],
        _ => &[],
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io;

    pub(in crate::fault) fn read_error(errno: Errno) -> Symptom {
        Symptom::of(&Error::io(Kind::Read, "reading", io::Error::from(errno)))
    }

    pub(in crate::fault) fn named(names: &[&str]) -> Symptom {
        Symptom { names: names.iter().map(|name| (*name).to_owned()).collect(), os_error: None }
    }

    #[test]
    fn a_native_error_looks_like_what_python_would_raise() {
        assert_eq!(
            read_error(Errno::CONNRESET).names,
            [
                "ReadError",
                "ConnectionResetError",
                "ConnectionError",
                "OSError",
                "FeedlineError",
                "Exception"
            ]
        );
        let damaged = Symptom::of(&Error::new(Kind::CorruptImage, "truncated"));
        assert_eq!(damaged.names, ["CorruptImageError", "FeedlineError", "Exception"]);
    }

    #[test]
    fn what_may_pass_is_told_from_what_will_not() {
        for errno in [Errno::IO, Errno::STALE, Errno::AGAIN, Errno::HOSTUNREACH] {
            assert!(read_error(errno).is_passing(), "{errno:?}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::ISDIR] {
            assert!(!read_error(errno).is_passing(), "{errno:?}");
        }
        assert!(named(&["socket.gaierror", "OSError", "Exception"]).is_passing());
        assert!(named(&["DeadlineExceededError", "FeedlineError"]).is_passing());
        assert!(
            !named(&["SourceUnavailableError", "FeedlineError", "OSError", "Exception"])
                .is_passing()
        );
        assert!(!named(&["PIL.UnidentifiedImageError", "OSError", "Exception"]).is_passing());
        assert!(!named(&["ValueError", "Exception"]).is_passing());
        assert!(!named(&["WorkerDiedError", "RuntimeError", "Exception"]).is_passing());
        let shrank = Symptom::of(&Error::new(Kind::Read, "the file shrank"));
        assert!(!shrank.is_passing());
    }

    #[test]
    fn a_name_without_a_module_fits_to_any() {
        let symptom = named(&["PIL.UnidentifiedImageError", "OSError"]);
        assert!(
            symptom.is_a("UnidentifiedImageError") && symptom.is_a("PIL.UnidentifiedImageError")
        );
        assert!(!symptom.is_a("other.UnidentifiedImageError") && !symptom.is_a("Error"));
    }
}
