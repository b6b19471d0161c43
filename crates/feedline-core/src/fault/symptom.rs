//! What a policy sees of a fault: the names of its classes and its errno. Native errors have the classes that Python
//! would raise in their place, so that one policy fits both.

use rustix::io::Errno;

use crate::error::{Error, Kind};

/// The classes and the errno of a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symptom {
    /// The names of its classes, the most specific first: "json.decoder.JSONDecodeError", "ValueError", "Exception".
    /// Python's own and Feedline's have no module.
    pub names: Vec<String>,
    /// The errno of the system error that caused it.
    pub os_error: Option<i32>,
}

/// Transient system errors.
const TRANSIENT: &[Errno] = &[
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

/// Errors of a file whose file system is gone.
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

/// The machine is short of a resource that all samples need: skipping one does not help.
const SHORTAGES: &[Errno] =
    &[Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::NOSPC, Errno::DQUOT];

/// Classes that mean the same. A front adds Feedline's own to errors that it recognizes only by their message, such
/// as a RuntimeError of torch's allocator.
const SHORTAGE_NAMES: &[&str] = &[
    "MemoryError",
    "OutOfMemoryError",
    "TooManyOpenFilesError",
    "OutOfThreadsError",
    "OutOfSpaceError",
];

/// Transient classes, whatever their errno.
const TRANSIENT_NAMES: &[&str] = &[
    "TimeoutError",
    "ConnectionError",
    "BlockingIOError",
    "InterruptedError",
    "DeadlineExceededError",
];

impl Symptom {
    /// The symptom of a native error.
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

    /// Whether one of its classes has this name. A name without a module matches classes of any module.
    pub fn is_a(&self, name: &str) -> bool {
        self.names.iter().any(|class| fits(class, name))
    }

    /// Whether it is transient.
    pub fn is_transient(&self) -> bool {
        if TRANSIENT_NAMES.iter().any(|name| self.names.iter().any(|class| class == name)) {
            return true;
        }
        match self.os_error {
            Some(number) => TRANSIENT.iter().any(|errno| errno.raw_os_error() == number),
            // Network libraries raise an OSError without an errno. So does Pillow for a file that is no image, which is
            // permanent.
            None => {
                let is_permanent = |class: &String| {
                    matches!(class.as_str(), "ReadError" | "SourceUnavailableError")
                        || class.starts_with("PIL.")
                };
                self.names.iter().any(|class| class == "OSError")
                    && !self.names.iter().any(is_permanent)
            }
        }
    }

    /// Whether the source may be unavailable, rather than this sample bad. It certainly is if a probe of the source's
    /// root fails as well.
    pub fn may_be_of_source(&self) -> bool {
        let vanished = |number| VANISHED.iter().any(|errno| errno.raw_os_error() == number);
        self.is_transient_on_disk() || self.os_error.is_some_and(vanished)
    }

    /// Whether it is a system error that the source can cause although its root answers.
    pub fn is_transient_on_disk(&self) -> bool {
        self.os_error
            .is_some_and(|number| TRANSIENT.iter().any(|errno| errno.raw_os_error() == number))
    }

    /// Whether the machine is short of a resource.
    pub fn is_shortage(&self) -> bool {
        self.names.iter().any(|class| SHORTAGE_NAMES.contains(&class.as_str()))
            || self
                .os_error
                .is_some_and(|number| SHORTAGES.iter().any(|errno| errno.raw_os_error() == number))
    }

    /// Whether it is a request to stop, such as KeyboardInterrupt, rather than an error.
    pub fn is_stop_request(&self) -> bool {
        self.names.iter().any(|class| class == "BaseException")
            && !self.names.iter().any(|class| class == "Exception")
    }
}

/// Whether a name matches a class with its module.
pub(super) fn fits(class: &str, name: &str) -> bool {
    class == name || (!name.contains('.') && class.rsplit('.').next() == Some(name))
}

/// The classes that Python raises for an errno, below OSError.
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
        let corrupt = Symptom::of(&Error::new(Kind::CorruptImage, "truncated"));
        assert_eq!(corrupt.names, ["CorruptImageError", "FeedlineError", "Exception"]);
    }

    #[test]
    fn transient_faults_are_distinguished_from_permanent_ones() {
        for errno in [Errno::IO, Errno::STALE, Errno::AGAIN, Errno::HOSTUNREACH] {
            assert!(read_error(errno).is_transient(), "{errno:?}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::ISDIR] {
            assert!(!read_error(errno).is_transient(), "{errno:?}");
        }
        assert!(named(&["socket.gaierror", "OSError", "Exception"]).is_transient());
        assert!(named(&["DeadlineExceededError", "FeedlineError"]).is_transient());
        assert!(
            !named(&["SourceUnavailableError", "FeedlineError", "OSError", "Exception"])
                .is_transient()
        );
        assert!(!named(&["PIL.UnidentifiedImageError", "OSError", "Exception"]).is_transient());
        assert!(!named(&["ValueError", "Exception"]).is_transient());
        assert!(!named(&["WorkerDiedError", "RuntimeError", "Exception"]).is_transient());
        let shrank = Symptom::of(&Error::new(Kind::Read, "the file shrank"));
        assert!(!shrank.is_transient());
    }

    #[test]
    fn a_name_without_a_module_matches_any_module() {
        let symptom = named(&["PIL.UnidentifiedImageError", "OSError"]);
        assert!(
            symptom.is_a("UnidentifiedImageError") && symptom.is_a("PIL.UnidentifiedImageError")
        );
        assert!(!symptom.is_a("other.UnidentifiedImageError") && !symptom.is_a("Error"));
    }
}
